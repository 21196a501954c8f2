"""What every room speaks of; so far the way in which records become JSON and come back."""
