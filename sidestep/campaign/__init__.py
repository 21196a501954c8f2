"""The main job: from a handful of labels to a certified policy."""
