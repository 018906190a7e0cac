"""How a model is laid over the processes: one file a strategy, its name is the strategy's, its class is ``Strategy``."""
