"""Where models come from: our own by name, the user's by path."""

from sidestep.models.reference import checked_model, load_model

__all__ = ["checked_model", "load_model"]
