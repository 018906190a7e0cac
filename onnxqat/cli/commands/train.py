"""``onnxqat train``: the demo trainer of Knight and of torch's ImageNet example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxqat.cli import _options


@click.command
@click.option("--data", required=True, help="Folder with train/ and val/ (a folder a class), or train.npz and val.npz.")
@click.option("--model-zoo", default="torchvision", help="Where architectures come from: torchvision, or a module.")
@click.option("-a", "--arch", default="resnet18", help="Architecture; also what files are called.")
@click.option("--teacher-arch", help="Architecture of the teacher [the network itself, in float].")
@click.option("-nc", "--num-classes", type=int, default=1000, help="Classes.")
@click.option("-j", "--workers", type=int, default=4, help="Processes that read images.")
@click.option("--epochs", type=int, default=90, help="Passes over the training data.")
@click.option("--start-epoch", type=int, default=0, help="Epoch to begin with; --resume knows it.")
@click.option("-b", "--batch-size", type=int, default=256, help="Samples a step, over all processes.")
@click.option("--lr", "--learning-rate", "lr", type=float, default=0.1, help="Learning rate at first.")
@click.option("--momentum", type=float, default=0.9, help="Of SGD.")
@click.option("--wd", "--weight-decay", "weight_decay", type=float, default=1e-4, help="Of weights, not of scales.")
@click.option("-p", "--print-freq", type=int, default=100, help="Batches between two lines.")
@click.option("--resume", default="", help="NAME_checkpoint.pth to go on from, or a QDQ ONNX file to begin with.")
@click.option("-e", "--evaluate", is_flag=True, help="Measure on the validation data, and stop.")
@click.option("--pretrained", is_flag=True, help="Weights of the zoo.")
@click.option("--world-size", type=int, default=-1, help="Machines (with --multiprocessing-distributed) or processes.")
@click.option("--rank", type=int, default=-1, help="Number of this one.")
@click.option("--dist-url", default="tcp://127.0.0.1:23456", help="Where process 0 is, or env://.")
@click.option("--dist-backend", default="nccl", help="nccl on GPUs, gloo on CPUs; follows the device.")
@click.option("--seed", type=int, help="Of sample order, crops and torch [0].")
@click.option("--gpu", type=int, help="Number of the GPU [all that the run has].")
@click.option("--multiprocessing-distributed", is_flag=True, help="One process a GPU.")
@click.option("--model-path", help="ONNX file to train, or weights for --arch.")
@click.option("--teacher-path", help="ONNX file of the teacher, or weights for --teacher-arch.")
@click.option("--backend", default="TSQAT", help="BackendType, or a backend table.")
@click.option("--optim", default="sgd", help="sgd, adam, adamw or radam.")
@click.option("--not-qat", is_flag=True, help="Train in float, without quantizers.")
@click.option("-l", "--log-level", type=int, default=1, help="0 debug, 1 info, 2 warning, 3 error.")
@click.option("--profile", is_flag=True, help="Compare every layer with the float model at the end.")
@click.option("--distill-method", help="Learn from a teacher too: kd, mse, feature-mse or attention.")
@click.option("--distill-alpha", type=float, default=0.95, help="Share of the teacher in the loss.")
@click.option("--temperature", type=float, default=6.0, help="Of kd.")
@click.option("--amp", is_flag=True, help="Mixed precision; quantizers stay float32.")
@click.option("--onnx-batch", type=int, default=1, help="Batch size of the ONNX files.")
@click.option("--opset-version", type=int, default=18, help="Opset of the ONNX files.")
@click.option("--sched", default="step", help="step, multistep, cosine, plateau, linear or constant.")
@click.option("-o", "--output", type=_options.FOLDER, default=".", help="Folder for the files.")
@click.option("--preprocess", help="Preprocessing line of validation images; training crops and mirrors [ImageNet's].")
@click.option("--image-size", type=int, default=224, help="Side of the images, where the model does not say it.")
@click.option("--calibration-batches", type=int, default=8, help="Batches that calibrate.")
@click.option(
    "--distill-tensors", default="", help="Names of inner tensors for feature-mse and attention, with commas."
)
@click.option("--batch-norm", default="keep", help="keep BatchNormalization through training, or fold it before.")
@click.option("--scale-lr", type=float, help="Learning rate of scales [that of weights, at most 0.0001 with sgd].")
@_options.as_json
def run(as_json: bool, distill_tensors: str, **given: Any) -> None:
    """Train a classifier of images with quantizers, as the demo of Knight-Finetune-Lib does.

    Prints Epoch, Time, Data, Loss, Acc@1 and Acc@5 (last value, running mean), and writes NAME_checkpoint.pth,
    NAME_model_best.pth, NAME_onnx_quantization.onnx and NAME_bestonnx_quantization.onnx.

    Example: onnxqat train --data images/ --model-path model.onnx -nc 10 --lr 0.001 --epochs 5
    """
    _options.need("torch", "train")
    from onnxqat.cli import _output
    from onnxqat.compat.classification import command
    from onnxqat.compat.classification.settings import Settings
    from onnxqat.report import build_train

    tensors = tuple(name for name in distill_tensors.split(",") if name)
    settings = Settings(**{**given, "output": Path(given["output"]), "distill_tensors": tensors})
    result = command.train(settings, quiet=as_json)
    if result is not None:
        _output.show(build_train.report(result, settings), as_json=as_json)
