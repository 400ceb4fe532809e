"""Packages that only some of the commands need."""

from importlib.util import find_spec

EXTRAS = {
    "ctranslate2": "ctranslate2", "gradio": "page", "onnx": "onnx", "onnxruntime": "onnx",
    "onnxscript": "onnx",
}  # fmt: skip
"""The extra of this package that installs each."""


def require(what: str, *packages: str) -> None:
    """Raises ImportError unless all packages can be imported; `what` needs them."""
    for package in packages:
        if find_spec(package) is None:
            raise ImportError(f"{what} needs the package {package}: pip install 'transduct[{EXTRAS[package]}]'")
