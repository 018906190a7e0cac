"""The names that users of Knight-Finetune-Lib and MQBench know, over the same objects as the rest of the package."""
