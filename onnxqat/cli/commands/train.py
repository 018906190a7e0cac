"""``onnxqat train``: the demo trainer of Knight and of torch's ImageNet example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxqat.cli import _headings, _options


@click.command(cls=_headings.Headed)
@_headings.under(
    "Data",
    click.option(
        "--data", required=True, help="Folder with train/ and val/ (one folder per class), or train.npz and val.npz."
    ),
    click.option(
        "--preprocess", help="Preprocessing line of validation images; training crops and mirrors [ImageNet's]."
    ),
    click.option(
        "--image-size", type=int, default=224, help="Height and width of the images, where the model does not say it."
    ),
    click.option("-b", "--batch-size", type=int, default=256, help="Number of samples in a step, over all processes."),
    click.option("-j", "--workers", type=int, default=4, help="Number of processes that read images."),
    click.option("-nc", "--num-classes", type=int, default=1000, help="Number of classes."),
)
@_headings.under(
    "Model",
    click.option("--model-path", help="ONNX file to train, or weights (a state dict) for --arch."),
    click.option(
        "--model-zoo", default="torchvision", help="Source of architectures: torchvision, or a Python module."
    ),
    click.option(
        "-a",
        "--arch",
        default="resnet18",
        help="Name of the architecture, and of the files where there is no ONNX file.",
    ),
    click.option("--pretrained", is_flag=True, help="Begin with the weights of the zoo."),
)
@_headings.under(
    "Quantization",
    click.option("--backend", default="TSQAT", help="Target: a BackendType, or a backend table."),
    click.option("--not-qat", is_flag=True, help="Train in float, without quantizers."),
    click.option("--calibration-batches", type=int, default=8, help="Number of batches to calibrate on."),
    click.option(
        "--batch-norm",
        default="keep",
        help="Handling of BatchNormalization: keep it through training, or fold it before.",
    ),
    click.option("--scale-lr", type=float, help="Learning rate of scales [that of weights, at most 0.0001 with sgd]."),
)
@_headings.under(
    "Training",
    click.option("--epochs", type=int, default=90, help="Number of passes over the training data."),
    click.option(
        "--start-epoch", type=int, default=0, help="Epoch to begin with; a checkpoint given to --resume knows it."
    ),
    click.option(
        "--resume",
        default="",
        show_default=False,
        help="File to go on from: NAME_checkpoint.pth, or a QDQ ONNX file to begin with.",
    ),
    click.option("-e", "--evaluate", is_flag=True, help="Measure on the validation data, and stop."),
    click.option("--lr", "--learning-rate", "lr", type=float, default=0.1, help="Learning rate of weights at first."),
    click.option("--momentum", type=float, default=0.9, help="Momentum of SGD."),
    click.option(
        "--wd",
        "--weight-decay",
        "weight_decay",
        type=float,
        default=1e-4,
        help="Weight decay of weights; scales have none.",
    ),
    click.option("--optim", default="sgd", help="Optimizer: sgd, adam, adamw or radam."),
    click.option(
        "--sched",
        default="step",
        help="Schedule of the learning rate: step, multistep, cosine, plateau, linear or constant.",
    ),
    click.option("--amp", is_flag=True, help="Train in mixed precision; quantizers stay float32."),
    click.option("--seed", type=int, help="Random seed of sample order, crops and torch [0]."),
)
@_headings.under(
    "Teacher",
    click.option("--teacher-path", help="ONNX file of the teacher, or weights (a state dict) for --teacher-arch."),
    click.option("--teacher-arch", help="Architecture of the teacher [the network itself, in float]."),
    click.option("--distill-method", help="Loss to learn from a teacher with: kd, mse, feature-mse or attention."),
    click.option("--distill-alpha", type=float, default=0.95, help="Share of the teacher in the loss."),
    click.option("--temperature", type=float, default=6.0, help="Temperature of the softmax in kd."),
    click.option(
        "--distill-tensors",
        default="",
        show_default=False,
        help="Names of inner tensors for feature-mse and attention, with commas.",
    ),
)
@_headings.under(
    "Device and processes",
    click.option("--gpu", type=int, help="Number of the GPU [all that the run has]."),
    click.option("--multiprocessing-distributed", is_flag=True, help="Start one process per GPU of this machine."),
    click.option(
        "--world-size",
        type=int,
        default=-1,
        help="Number of processes, or of machines with --multiprocessing-distributed.",
    ),
    click.option("--rank", type=int, default=-1, help="Number of this process or machine, from 0."),
    click.option("--dist-url", default="tcp://127.0.0.1:23456", help="Address of process 0, or env://."),
    click.option(
        "--dist-backend",
        default="nccl",
        help="Backend of torch.distributed: nccl on GPUs, gloo on CPUs; follows the device.",
    ),
)
@_headings.under(
    "Output",
    click.option("-o", "--output", type=_options.FOLDER, default=".", help="Folder to write the files to."),
    click.option("--onnx-batch", type=int, default=1, help="Batch size of the ONNX files."),
    click.option("--opset-version", type=int, default=18, help="Opset of the ONNX files."),
    click.option("-p", "--print-freq", type=int, default=100, help="Number of batches between two printed lines."),
    click.option(
        "-l", "--log-level", type=int, default=1, help="Level of messages: 0 debug, 1 info, 2 warning, 3 error."
    ),
    click.option("--profile", is_flag=True, help="Compare every layer with the float model at the end."),
    _options.as_json,
)
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
