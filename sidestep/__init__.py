"""Safe planning around side effects that nobody wrote into the model."""

__version__ = "0.1.0"
