// Trainer and what its calls return, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "sherd/sherd.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_results(nb::module_& m) {
  nb::class_<sherd::StepMetrics>(m, "StepMetrics", "Results of a training step.")
      .def_ro("step", &sherd::StepMetrics::step)
      .def_ro("loss", &sherd::StepMetrics::loss)
      .def_ro("grad_norm", &sherd::StepMetrics::grad_norm)
      .def_ro("lr", &sherd::StepMetrics::lr)
      .def_ro("num_targets", &sherd::StepMetrics::num_targets)
      .def_ro("tokens", &sherd::StepMetrics::tokens)
      .def_ro("seconds", &sherd::StepMetrics::seconds)
      .def_ro("exposed_comm_ms", &sherd::StepMetrics::exposed_comm_ms)
      .def_ro("skipped", &sherd::StepMetrics::skipped)
      .def_ro("loss_scale", &sherd::StepMetrics::loss_scale)
      .def_ro("not_applied", &sherd::StepMetrics::not_applied)
      .def("__repr__", [](const sherd::StepMetrics& step) {
        return "<sherd.StepMetrics: step " + std::to_string(step.step) + ", loss " +
               std::to_string(step.loss) + ">";
      });
  nb::class_<sherd::Evaluation::Set>(m, "EvaluationSet", "The loss on one validation set.")
      .def_ro("name", &sherd::Evaluation::Set::name)
      .def_ro("loss", &sherd::Evaluation::Set::loss)
      .def_ro("num_tokens", &sherd::Evaluation::Set::num_tokens)
      .def_ro("bits_per_byte", &sherd::Evaluation::Set::bits_per_byte);
  nb::class_<sherd::Evaluation::Task>(m, "TaskScore", "The score of one task.")
      .def_ro("name", &sherd::Evaluation::Task::name)
      .def_ro("acc", &sherd::Evaluation::Task::acc)
      .def_ro("acc_norm", &sherd::Evaluation::Task::acc_norm)
      .def_ro("num_questions", &sherd::Evaluation::Task::num_questions);
  nb::class_<sherd::Evaluation>(m, "Evaluation", "Losses on the validation sets.")
      .def_ro("step", &sherd::Evaluation::step)
      .def_ro("loss", &sherd::Evaluation::loss)
      .def_ro("num_tokens", &sherd::Evaluation::num_tokens)
      .def_ro("sets", &sherd::Evaluation::sets)
      .def_ro("tasks", &sherd::Evaluation::tasks)
      .def_ro("loss_of_average", &sherd::Evaluation::loss_of_average)
      .def("__repr__", [](const sherd::Evaluation& evaluation) {
        return "<sherd.Evaluation: step " + std::to_string(evaluation.step) + ", loss " +
               std::to_string(evaluation.loss) + ">";
      });
}

using OnStep = std::function<void(const sherd::StepMetrics&)>;
using OnEvaluation = std::function<void(const sherd::Evaluation&)>;

namespace {

// Waits for saves to end without the interpreter's lock when Python drops it.
class OwnTrainer : public sherd::Trainer {
 public:
  using sherd::Trainer::Trainer;
  OwnTrainer(const OwnTrainer&) = delete;
  OwnTrainer& operator=(const OwnTrainer&) = delete;
  ~OwnTrainer() {
    const nb::gil_scoped_release released;
    const sherd::Trainer ended(std::move(static_cast<sherd::Trainer&>(*this)));
  }
};

// Whether Ctrl-C has come, in Python's code of a callback or elsewhere.
template <class Call>
bool is_interrupted_after(const Call& call) {
  try {
    call();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    return true;
  }
  return false;
}

// Ctrl-C ends it after a step, as it ends a run of the program: saved, if the recipe says so.
void train(OwnTrainer& trainer, const OnStep& on_step, const OnEvaluation& on_evaluation) {
  bool is_interrupted = false;
  sherd::TrainCallbacks callbacks;
  callbacks.on_step = [&](const sherd::StepMetrics& step) {
    const nb::gil_scoped_acquire locked;
    is_interrupted |= is_interrupted_after([&] {
      if (on_step) on_step(step);
    });
    return !is_interrupted;
  };
  callbacks.on_evaluation = [&](const sherd::Evaluation& evaluation) {
    const nb::gil_scoped_acquire locked;
    is_interrupted |= is_interrupted_after([&] {
      if (on_evaluation) on_evaluation(evaluation);
    });
  };
  {
    const nb::gil_scoped_release released;
    trainer.train(callbacks);
  }
  if (!is_interrupted) return;
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw nb::python_error();
}

}  // namespace

void bind_trainer(nb::module_& m) {
  nb::class_<OwnTrainer>(
      m, "Trainer",
      "A training in this process; its ranks are threads. Results are those of `sherd train`, to\n"
      "the last bit. Constructing it loads the run's newest checkpoint, if there is one.")
      .def(
          "__init__",
          [](OwnTrainer* self, const sherd::Recipe& recipe,
             std::function<void(const std::string&)> on_message) {
            sherd::TrainerOptions options;
            if (on_message) {
              options.on_message = [on_message](const std::string& text) {
                const nb::gil_scoped_acquire locked;
                if (is_interrupted_after([&] { on_message(text); })) PyErr_SetInterrupt();
              };
            }
            const nb::gil_scoped_release released;
            new (self) OwnTrainer(recipe, options);
          },
          "recipe"_a, "on_message"_a.none() = nb::none())
      .def_prop_ro("num_ranks", &sherd::Trainer::num_ranks)
      .def_prop_ro("steps_done", &sherd::Trainer::steps_done)
      .def_prop_ro("max_steps", &sherd::Trainer::max_steps)
      .def_prop_ro("is_done", &sherd::Trainer::is_done)
      .def_prop_ro("evaluation_is_due", &sherd::Trainer::evaluation_is_due,
                   "Whether the recipe asks for an evaluation after the steps that are done.")
      .def_prop_ro("newest_checkpoint",
                   [](const OwnTrainer& trainer) -> std::optional<std::string> {
                     const std::string path = trainer.newest_checkpoint();
                     if (path.empty()) return std::nullopt;
                     return path;
                   })
      .def("step", &sherd::Trainer::step, Released(), "The next training step.")
      .def(
          "evaluate",
          [](OwnTrainer& trainer, std::optional<std::int64_t> num_batches) {
            return num_batches ? trainer.evaluate(*num_batches) : trainer.evaluate();
          },
          "num_batches"_a = nb::none(), Released(),
          "Losses on the validation sets. 0: all batches; None: as many as the recipe says.")
      .def("save_if_due", &sherd::Trainer::save_if_due, Released(),
           "Call it after each step: saves at the recipe's interval.")
      .def("save", &sherd::Trainer::save, Released(),
           "Saves now. Returns the folder of the complete checkpoint.")
      .def("finish", &sherd::Trainer::finish, Released(),
           "Returns when every save is complete on disk.")
      .def("train", &train, "on_step"_a.none() = nb::none(), "on_evaluation"_a.none() = nb::none(),
           "The rest of the training, with evaluations and saves as the recipe says. Ctrl-C ends\n"
           "it after a step: it saves (checkpoint.on_interrupt) and raises KeyboardInterrupt.")
      .def(
          "sample",
          [](OwnTrainer& trainer, const std::string& prompt, std::int64_t num_tokens,
             double temperature, std::int64_t top_k, double top_p, std::uint64_t seed) {
            std::string text;
            {
              const nb::gil_scoped_release released;
              text = trainer.sample(prompt, {num_tokens, temperature, top_k, top_p, seed});
            }
            return readable(text);
          },
          "prompt"_a, "num_tokens"_a = 200, "temperature"_a = 1.0, "top_k"_a = 0, "top_p"_a = 1.0,
          "seed"_a = 0, "Text that the model writes after `prompt`.");
}
