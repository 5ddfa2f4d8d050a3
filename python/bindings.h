/// The parts of the Python module sherd._sherd, each in a file of its own or in module.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include <filesystem>
#include <string>

using Path = std::filesystem::path;
/// Of calls that compute: other threads of Python run meanwhile.
using Released = nanobind::call_guard<nanobind::gil_scoped_release>;

/// Text of a model, whose bytes may not be UTF-8: those become U+FFFD.
inline nanobind::str readable(const std::string& text) {
  return nanobind::steal<nanobind::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

/// StepMetrics, Evaluation and the like.
void bind_results(nanobind::module_& m);
/// Trainer. Its calls release the interpreter's lock.
void bind_trainer(nanobind::module_& m);
