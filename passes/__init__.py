"""Graph passes; import as ``onnxqat.passes``. One file is one pass; the file name is its name."""

if __name__ != "onnxqat.passes":
    raise ImportError("import onnxqat.passes, not the folder 'passes'")
