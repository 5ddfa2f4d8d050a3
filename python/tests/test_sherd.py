"""Tests of the Python package, for an installed wheel: python -m unittest discover python/tests.

SHERD_PROGRAM, if it is set, is a program of the same version, to compare with; otherwise the one inside the
wheel is used.
"""
import importlib.metadata
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy

import sherd

PROGRAM = os.environ.get("SHERD_PROGRAM")
RECIPE = """run: {name: python, output_dir: %(folder)s/%(output)s, device: cpu, num_threads: 1}
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 128, max_seq_length: 8,
        positions: rope, norm: rmsnorm, activation: swiglu, bias: false}
data: {path: %(folder)s/text.txt, format: bytes, validation_fraction: 0.2}
training: {seq_length: 8, global_batch_size: 4, max_steps: 6, eval_interval: 3, eval_batches: 2, sample_tokens: 0}
parallelism: {data_parallel_shard_degree: 2}
zero_optimization: {stage: 3}
checkpoint: {interval: 3}
"""


def run_program(*arguments):
    command = [PROGRAM] if PROGRAM else [sys.executable, "-m", "sherd"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout


class SherdTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)

    def recipe(self, output="run"):
        return sherd.Recipe.parse(RECIPE % {"folder": self.folder, "output": output})

    def train_with_program(self, output):
        path = self.folder / f"{output}.yaml"
        path.write_text(RECIPE % {"folder": self.folder, "output": output})
        run_program("train", str(path))

    def metrics(self, output, key):
        lines = (self.folder / output / "metrics.jsonl").read_text().splitlines()
        return [line[key] for line in map(json.loads, lines) if key in line]

    def digests(self, output):
        path = str(self.folder / output)
        return [t["digest"] for t in json.loads(run_program("inspect", path, "--json", "--digests"))["tensors"]]


class TestTraining(SherdTest):
    def test_a_trainer_has_the_bits_of_the_program(self):
        self.train_with_program("program")
        losses, evaluations = [], []
        sherd.Trainer(self.recipe()).train(
            on_step=lambda step: losses.append(step.loss),
            on_evaluation=lambda evaluation: evaluations.append(evaluation.loss))
        self.assertEqual(losses, self.metrics("program", "loss"))
        self.assertEqual(evaluations, self.metrics("program", "val_loss"))
        self.assertEqual(self.digests("run"), self.digests("program"))

    def test_two_train_at_once(self):
        trainers = [sherd.Trainer(self.recipe(name)) for name in ("a", "b")]
        threads = [threading.Thread(target=trainer.train) for trainer in trainers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.digests("a"), self.digests("b"))

    def test_a_loop_of_its_user(self):
        messages = []
        trainer = sherd.Trainer(self.recipe(), on_message=messages.append)
        self.assertEqual((trainer.num_ranks, trainer.max_steps, trainer.newest_checkpoint), (2, 6, None))
        while not trainer.is_done:
            step = trainer.step()
            if trainer.evaluation_is_due:
                self.assertGreater(trainer.evaluate().num_tokens, 0)
            trainer.save_if_due()
        self.assertEqual(step.step, trainer.steps_done)
        self.assertTrue(trainer.save().endswith("step-0000000006"))
        self.assertEqual(len(trainer.sample("th", num_tokens=3, seed=1).encode()), 3)
        with self.assertRaisesRegex(sherd.UsageError, "all 6 steps of the recipe are done"):
            trainer.step()

    def test_ctrl_c_saves_and_ends_a_training(self):
        # A shell's background jobs begin with the signal ignored.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        trainer = sherd.Trainer(self.recipe().set("checkpoint.on_interrupt", True))

        def interrupt(step):
            if step.step == 2:
                os.kill(os.getpid(), signal.SIGINT)

        with self.assertRaises(KeyboardInterrupt):
            trainer.train(on_step=interrupt)
        self.assertEqual(trainer.steps_done, 2)
        self.assertTrue(trainer.newest_checkpoint.endswith("step-0000000002"))
        trainer.train()
        self.train_with_program("program")
        self.assertEqual(self.digests("run"), self.digests("program"))

    def test_ctrl_c_during_an_evaluation_saves_too(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        trainer = sherd.Trainer(self.recipe().set("checkpoint.on_interrupt", True))
        with self.assertRaises(KeyboardInterrupt):
            trainer.train(on_evaluation=lambda evaluation: os.kill(os.getpid(), signal.SIGINT))
        self.assertLess(trainer.steps_done, trainer.max_steps)
        self.assertIsNotNone(trainer.newest_checkpoint)

    def test_what_a_callback_raises_is_passed_on(self):
        trainer = sherd.Trainer(self.recipe())
        with self.assertRaises(ZeroDivisionError):
            trainer.train(on_step=lambda step: 1 / 0)
        self.assertEqual(trainer.steps_done, 1)
        trainer.step()

    def test_other_threads_run_during_steps(self):
        trainer = sherd.Trainer(self.recipe())
        ticks = []
        stop = threading.Event()

        def tick():
            while not stop.is_set():
                ticks.append(1)
                time.sleep(0)

        thread = threading.Thread(target=tick)
        thread.start()
        before = len(ticks)
        trainer.train()
        stop.set()
        thread.join()
        self.assertGreater(len(ticks), before)


class TestErrors(SherdTest):
    def test_a_trainer_serves_one_thread_at_a_time(self):
        trainer = sherd.Trainer(self.recipe())
        errors = []

        def sample():
            try:
                trainer.sample("a", num_tokens=1)
            except sherd.UsageError as error:
                errors.append(str(error))

        def on_step(step):
            thread = threading.Thread(target=sample)
            thread.start()
            thread.join()

        trainer.train(on_step=on_step)
        self.assertEqual(len(errors), 6)
        self.assertIn("another thread uses it", errors[0])
        sample()
        self.assertEqual(len(errors), 6)

    def test_a_dropped_trainer_ends_its_saves(self):
        trainer = sherd.Trainer(self.recipe().set("checkpoint.interval", 1))
        trainer.step()
        trainer.save_if_due()
        del trainer
        self.assertTrue((self.folder / "run/checkpoints/step-0000000001").is_dir())

    def test_an_unknown_key_has_the_programs_sentence(self):
        with self.assertRaisesRegex(sherd.UsageError, 'unknown key "optimizer.lrr"; did you mean "optimizer.lr"'):
            self.recipe().set("optimizer.lrr", 1).check()

    def test_errors_are_errors_of_sherd(self):
        self.assertTrue(issubclass(sherd.DataError, sherd.Error))
        self.assertTrue(issubclass(sherd.Error, RuntimeError))
        with self.assertRaises(sherd.DataError):
            sherd.Checkpoint(self.folder)

    def test_a_wrong_type_is_a_type_error(self):
        with self.assertRaises(TypeError):
            sherd.Trainer("recipe.yaml")
        with self.assertRaises(TypeError):
            self.recipe().set_ranks("two")


class TestFiles(SherdTest):
    def test_a_recipe_takes_values_of_python(self):
        recipe = self.recipe().set("training.max_steps", 5).set("optimizer.betas", [0.8, 0.9])
        recipe.set("checkpoint.async", False)
        self.assertEqual(recipe.get("training.max_steps"), "5")
        self.assertEqual(recipe.get("optimizer.betas"), "[0.8, 0.9]")
        self.assertEqual(recipe.get("checkpoint.async"), "false")
        recipe.set("optimizer.no_decay", ["*norm1.weight", "head.weight"])
        self.assertIn("*norm1.weight", recipe.get("optimizer.no_decay"))
        recipe.set("optimizer.groups", [{"parameters": ["*norm1.*"], "frozen": True}, {"parameters": ["*"]}])
        self.assertIn("frozen: true", recipe.get("optimizer.groups"))
        self.assertEqual(recipe.copy().set_ranks(4).get("parallelism.data_parallel_shard_degree"), "4")
        self.assertEqual(recipe.get("parallelism.data_parallel_shard_degree"), "2")

    def test_a_plan_has_the_programs_figures(self):
        path = self.folder / "plan.yaml"
        path.write_text(RECIPE % {"folder": self.folder, "output": "run"})
        plan = sherd.plan(sherd.Recipe.load(path), device_memory_bytes=1 << 30)
        self.assertEqual(plan.text, run_program("plan", str(path), "--device-memory", "1GiB"))
        self.assertEqual(len(plan.ranks), 2)
        self.assertTrue(plan.fits)

    def test_a_checkpoint_is_read_as_arrays(self):
        sherd.Trainer(self.recipe()).train()
        checkpoint = sherd.Checkpoint(self.folder / "run")
        self.assertEqual(checkpoint.step, 6)
        self.assertEqual(json.loads(checkpoint.json())["tensors"][0]["name"], checkpoint.tensors[0].name)
        arrays = sherd.load_checkpoint(self.folder / "run")
        for tensor in checkpoint.tensors:
            if tensor.kind == "param":
                self.assertEqual(arrays[tensor.name].shape, tensor.shape)
                self.assertEqual(arrays[tensor.name].dtype, numpy.float32)
        # As `sherd export` writes them.
        try:
            import h5py
        except ImportError:
            self.skipTest("there is no h5py to read an export with")
        file = self.folder / "export.h5"
        run_program("export", str(self.folder / "run"), "--to", str(file))
        with h5py.File(file) as exported:
            for name, array in arrays.items():
                numpy.testing.assert_array_equal(array, exported[f"tensors/{name}/param"][()])

    def test_text_is_generated_as_by_the_program(self):
        sherd.Trainer(self.recipe()).train()
        run = self.folder / "run"
        texts = sherd.generate(run, ["th", "fo"], num_tokens=4, seed=2)
        (self.folder / "prompts.jsonl").write_text('"th"\n"fo"\n')
        lines = run_program("sample", str(run), "--prompts", str(self.folder / "prompts.jsonl"), "--tokens", "4",
                            "--seed", "2").splitlines()
        self.assertEqual([t.text for t in texts], [json.loads(line)["text"] for line in lines])

    def test_ctrl_c_ends_a_text(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        self.train_with_program("run")
        timer = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            sherd.generate(self.folder / "run", ["a"], num_tokens=100_000_000)
        self.assertLess(time.monotonic() - begin, 60)
        timer.join()
        self.assertEqual(sherd.generate(self.folder / "run", ["a"], num_tokens=3)[0].num_tokens, 3)

    def test_a_text_that_ends_inside_a_character_is_readable(self):
        (self.folder / "text.txt").write_text("é" * 400)
        recipe = self.recipe().set("model.vocab_size", 256)
        trainer = sherd.Trainer(recipe)
        trainer.train()
        self.assertTrue(trainer.sample("é", num_tokens=5, temperature=0.0))
        self.assertTrue(sherd.generate(self.folder / "run", ["é"], num_tokens=5, temperature=0.0)[0].text)

    def test_a_model_folder_is_written_and_read(self):
        sherd.Trainer(self.recipe()).train()
        exported = sherd.export_model(self.folder / "run", self.folder / "model", dtype="bf16")
        self.assertEqual(exported.dtype, "bf16")
        info = sherd.read_model_folder(self.folder / "model")
        self.assertEqual(info.recipe_values["model.hidden_size"], "16")


class TestPackage(unittest.TestCase):
    def test_it_has_one_version(self):
        self.assertEqual(sherd.__version__, importlib.metadata.version("sherd").split("+")[0])

    def test_it_has_types_and_docstrings(self):
        folder = pathlib.Path(sherd.__file__).parent
        self.assertIn("class Trainer:", (folder / "_sherd.pyi").read_text())
        self.assertTrue((folder / "py.typed").exists())
        for name in sherd.__all__:
            if name != "__version__":
                self.assertTrue(getattr(sherd, name).__doc__, name)

    def test_the_program_is_inside(self):
        done = subprocess.run([sys.executable, "-m", "sherd", "train", "no/such.yaml"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertTrue(done.stderr.startswith("sherd: no/such.yaml"), done.stderr)


if __name__ == "__main__":
    unittest.main()
