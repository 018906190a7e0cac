"""Loss functions."""

from __future__ import annotations

import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView

REDUCTIONS = ("none", "sum", "mean")


def negative_log_likelihood(
    log_probability: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int | None,
) -> torch.Tensor:
    """Minus the log probability of the target class, times its weight; ignored targets give 0.

    Args:
        log_probability: (N, C, d1, ..., dk).
        target: classes of shape (N, d1, ..., dk).
        weight: of each class, (C,).
        reduction: one of :data:`REDUCTIONS`; the mean is weighted, and ignored targets weigh nothing.
        ignore_index: the target that is ignored, in or out of the range of classes.
    """
    index = target.to(torch.int64)
    counted = None if ignore_index is None else index != ignore_index
    if counted is not None:
        index = torch.where(counted, index, torch.zeros_like(index))
    loss = -log_probability.gather(1, index.unsqueeze(1)).squeeze(1)
    factor = None
    if counted is not None:
        # A selection, not a product: the log probability of a class that is ignored may be infinite.
        loss = torch.where(counted, loss, torch.zeros_like(loss))
        factor = counted.to(loss.dtype)
    if weight is not None:
        given = weight.index_select(0, index.reshape(-1)).reshape(index.shape)
        loss = loss * given
        factor = given if factor is None else given * factor
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.mean() if factor is None else loss.sum() / factor.sum()


def softmax_cross_entropy(
    scores: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of a softmax over axis 1, and the log probabilities."""
    log_probability = torch.log_softmax(scores, 1)
    return negative_log_likelihood(log_probability, labels, weight, reduction, ignore_index), log_probability


def _options(n: NodeView) -> tuple[str, int | None]:
    reduction, ignore_index = str(n.attr("reduction", "mean")), n.attr("ignore_index")
    if reduction not in REDUCTIONS:
        raise n.refuse(f"reduction {reduction}")
    return reduction, None if ignore_index is None else int(ignore_index)


def negative_log_likelihood_loss(n: NodeView) -> Lowered:
    """NegativeLogLikelihoodLoss 12 to 22."""
    return n.call(negative_log_likelihood, n.tensor(0), n.tensor(1), n.optional(2), *_options(n))


def softmax_cross_entropy_loss(n: NodeView) -> Lowered:
    """SoftmaxCrossEntropyLoss 12 and 13, with its optional output of log probabilities."""
    both = n.call(softmax_cross_entropy, n.tensor(0), n.tensor(1), n.optional(2), *_options(n))
    return n.item(both, 0), (n.item(both, 1) if n.wants(1) else None)
