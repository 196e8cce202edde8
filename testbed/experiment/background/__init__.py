"""The background axis: traffic beside the experiment's own. One file per kind."""
