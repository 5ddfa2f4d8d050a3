"""Trains transformers with sharded state.

A Recipe describes a training, `plan` says what it needs, a Trainer does it, and a Checkpoint holds
its results. They are those of the program `sherd`, to the last bit.

    import sherd

    recipe = sherd.Recipe.load("recipe.yaml")
    print(sherd.plan(recipe).text)
    trainer = sherd.Trainer(recipe)
    while not trainer.is_done:
        print(trainer.step().loss)
        if trainer.evaluation_is_due:
            print(trainer.evaluate().loss)
        trainer.save_if_due()
    trainer.finish()
"""

from ._sherd import (
    Checkpoint,
    DataError,
    Error,
    Evaluation,
    EvaluationSet,
    ExportedModel,
    GeneratedText,
    ModelInfo,
    PeerError,
    Plan,
    RankMemory,
    Recipe,
    StepMetrics,
    TaskScore,
    TensorInfo,
    Tokenizer,
    Trainer,
    TrainingError,
    UsageError,
    __version__,
    export_model,
    generate,
    plan,
    read_model_folder,
)


def load_checkpoint(path, kind="param"):
    """The tensors of one kind in a checkpoint, as a dict of numpy arrays of float32.

    `path` is a checkpoint's folder, or a run's, for its newest checkpoint. `kind` is "param", or
    state of the optimizer such as "exp_avg".
    """
    checkpoint = Checkpoint(path)
    return {t.name: checkpoint.read(t.name, kind) for t in checkpoint.tensors if t.kind == kind}


__all__ = [
    "Checkpoint",
    "DataError",
    "Error",
    "Evaluation",
    "EvaluationSet",
    "ExportedModel",
    "GeneratedText",
    "ModelInfo",
    "PeerError",
    "Plan",
    "RankMemory",
    "Recipe",
    "StepMetrics",
    "TaskScore",
    "TensorInfo",
    "Tokenizer",
    "Trainer",
    "TrainingError",
    "UsageError",
    "__version__",
    "export_model",
    "generate",
    "load_checkpoint",
    "plan",
    "read_model_folder",
]
