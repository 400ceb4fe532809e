"""Where a run's figures go beside the terminal: `training.report_to`, such as `tensorboard` or `trackio`.

transformers' own callbacks write them. What is added here: a tracker whose package is missing is refused before any work is done,
with the name of the package, and TensorBoard's events of all starts of a run lie in one folder.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = {
    "azure_ml": "azureml-core",
    "clearml": "clearml",
    "codecarbon": "codecarbon",
    "comet_ml": "comet-ml",
    "dagshub": "dagshub",
    "dvclive": "dvclive",
    "flyte": "flytekit",
    "mlflow": "mlflow",
    "neptune": "neptune",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
}
"""What `pip install` needs for a tracker."""
MODULES = {"azureml-core": ("azureml",), "comet-ml": ("comet_ml",), "tensorboard": ("tensorboard", "tensorboardX")}
"""What is imported, where it has another name than its package; one of them is enough."""


def check_trackers(report_to: str | Iterable[str] | None) -> None:
    """Refuses trackers that cannot work here.

    Raises:
        ValueError: for a tracker that is unknown or whose package is not installed.
    """
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    names = [report_to] if isinstance(report_to, str) else list(report_to or ())
    for name in names:
        if name in ("none", "all"):
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            raise ValueError(f"report_to={name!r} is unknown; choose none, all or some of {', '.join(INTEGRATION_TO_CALLBACK)}")
        package = PACKAGES.get(name)
        if package is not None and not any(find_spec(module) for module in MODULES.get(package, (package,))):
            raise ValueError(f"report_to={name!r} needs a package that is not installed: pip install {package}")


def place_events(trainer: Any, folder: Path) -> None:
    """TensorBoard's events of every start go to `folder`, so that they are one run; an own TENSORBOARD_LOGGING_DIR is kept."""
    from transformers.integrations import TensorBoardCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder)
