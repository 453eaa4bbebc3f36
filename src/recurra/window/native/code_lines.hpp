// The line of the program that calls an operator, found in some ns, and described for errors.
#pragma once

#include <nanobind/nanobind.h>

#include <frameobject.h>

#include <cstring>
#include <string>
#include <unordered_map>

#include "engine.hpp"

// Python 3.11 has frames that can be read without its lock and without objects.
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define RECURRA_FRAMES
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

namespace recurra {

// Returns whether code is torch's own. Code objects are kept alive, so that addresses stay unique.
inline bool of_torch(PyCodeObject* code) {
  static std::unordered_map<const void*, bool> known;
  auto [found, missing] = known.try_emplace(code, false);
  if (missing) {
    const nanobind::gil_scoped_acquire acquire;
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    found->second = file && std::strstr(file, "/torch/") != nullptr;
    Py_INCREF(code);
  }
  return found->second;
}

// Returns the innermost line of this thread outside of torch's modules. One caller at a time.
#ifdef RECURRA_FRAMES
inline CodeLine code_line() {
  const PyThreadState* thread = PyGILState_GetThisThreadState();
  const _PyInterpreterFrame* frame = thread ? thread->cframe->current_frame : nullptr;
  static const PyCodeObject* last = nullptr;  // not torch's, and kept alive
  while (frame && frame->f_code != last && of_torch(frame->f_code)) frame = frame->previous;
  if (!frame) return {};
  last = frame->f_code;
  const auto words = frame->prev_instr - _PyCode_CODE(frame->f_code);
  return {frame->f_code, static_cast<int>(words * static_cast<long>(sizeof(_Py_CODEUNIT)))};
}
#else
inline CodeLine code_line() {
  const nanobind::gil_scoped_acquire acquire;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  CodeLine found;
  while (frame && !found.code) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (!of_torch(code)) found = {code, PyFrame_GetLasti(frame)};
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}
#endif

inline std::string describe_code_line(const CodeLine& line) {
  if (!line.code) return "an unknown line";
  const nanobind::gil_scoped_acquire acquire;
  auto* code = const_cast<PyCodeObject*>(static_cast<const PyCodeObject*>(line.code));
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  return std::string(file ? file : "?") + ":" + std::to_string(PyCode_Addr2Line(code, line.at));
}

}  // namespace recurra
