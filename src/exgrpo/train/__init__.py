"""ExGRPO on TRL: the only package that imports trl and accelerate.

from exgrpo import ExGRPOConfig, ExGRPOTrainer

trainer = ExGRPOTrainer(model, reward_funcs, args=ExGRPOConfig("runs/mine"), train_dataset=dataset)
trainer.train()
"""

from exgrpo.train.callbacks import MetricsWriter, ProgressLines
from exgrpo.train.config import ExGRPOConfig
from exgrpo.train.trainer import ExGRPOTrainer

__all__ = ["ExGRPOConfig", "ExGRPOTrainer", "MetricsWriter", "ProgressLines"]
