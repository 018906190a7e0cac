"""Models in and out, edits that keep invariants, walks over all scopes, the verifier, graphsurgeon interop."""
