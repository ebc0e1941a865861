"""What outside packages need in order to be imported beside a torch that is built for the CPU."""

import torch


def define_vision_operators() -> torch.library.Library | None:
    """Torchvision's wheel is built for CUDA: its Python part loads once its operators have names.

    No model of the zoo calls them. The library that is returned must be kept alive.
    """
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


LIBRARY = define_vision_operators()
