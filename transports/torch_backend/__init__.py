"""The backend `testbed` of torch.distributed: process group, DDP hook, engine on gradient hooks, autoload."""
