"""Where models come from: our own by name, the user's by path."""

from sidestep.models.reference import load_model

__all__ = ["load_model"]
