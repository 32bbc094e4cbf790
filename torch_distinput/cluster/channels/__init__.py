"""How ranks talk inside an epoch: connections of gloo beside the user's groups."""
