// Replaces functions of PyTorch in C that Python calls, in place: callers that have looked one up
// before call the replacement, too.
//
//   to_numpy = torch.Tensor.numpy    # before a block; inside, to_numpy(x) waits for x
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <utility>

namespace recurra {

class CFunctions {
 public:
  // Returns an attribute; for a function in C, one that always calls the original.
  static nanobind::object original(nanobind::handle owner, nanobind::handle name) {
    const auto found = nanobind::steal(PyObject_GetAttr(owner.ptr(), name.ptr()));
    if (!found.is_valid()) throw nanobind::python_error();
    const Entry* entry = entry_of(found.ptr());
    return entry ? nanobind::borrow(entry->original) : found;
  }

  // Replaces an attribute that is a function in C, or restores it for null or itself; returns
  // whether it is one.
  static bool replace(nanobind::handle owner, nanobind::handle name, PyObject* by) {
    const auto found = nanobind::steal(PyObject_GetAttr(owner.ptr(), name.ptr()));
    Entry* entry = found.is_valid() ? entry_of(found.ptr()) : nullptr;
    PyErr_Clear();
    if (!entry) return false;
    PyObject* now = by == entry->original ? nullptr : by;
    Py_XINCREF(now);
    Py_XDECREF(std::exchange(entry->replacement, now));
    return true;
  }

  // Counts the replaced functions.
  static std::size_t replaced() {
    return static_cast<std::size_t>(
        std::count_if(entries.begin(), entries.end(), [](const Entry& e) { return e.replacement; }));
  }

 private:
  struct Entry {
    PyMethodDef* place;  // read by Python at every call
    PyMethodDef before;
    PyObject *original, *replacement;
    bool method;
  };
  static constexpr std::size_t kMost = 64;
  inline static std::array<Entry, kMost> entries{};  // never freed
  inline static std::size_t count = 0;

  static PyMethodDef* place_of(PyObject* found) {
    if (Py_TYPE(found) == &PyMethodDescr_Type) {
      return reinterpret_cast<PyMethodDescrObject*>(found)->d_method;
    }
    if (!PyCFunction_CheckExact(found)) return nullptr;
    return reinterpret_cast<PyCFunctionObject*>(found)->m_ml;
  }

  static Entry* entry_of(PyObject* found) {
    PyMethodDef* place = place_of(found);
    if (!place) return nullptr;
    for (std::size_t k = 0; k < count; ++k) {
      if (entries[k].place == place) return &entries[k];
    }
    const bool keywords = place->ml_flags & METH_KEYWORDS;
    if ((place->ml_flags & METH_FASTCALL) || count == kMost) return nullptr;
    Entry& entry = entries[count];
    entry = {place, *place, nullptr, nullptr, !PyCFunction_CheckExact(found)};
    if (entry.method) {
      entry.original = PyDescr_NewMethod(PyDescr_TYPE(found), &entry.before);
    } else {
      const auto* function = reinterpret_cast<PyCFunctionObject*>(found);
      entry.original = PyCFunction_NewEx(&entry.before, function->m_self, function->m_module);
    }
    if (!entry.original) throw nanobind::python_error();
    place->ml_meth = reinterpret_cast<PyCFunction>(
        keywords ? reinterpret_cast<void (*)()>(with_keywords[count])
                 : reinterpret_cast<void (*)()>(without_keywords[count]));
    ++count;
    return &entry;
  }

  // `given` is a tuple, the only argument, or null, by the function's calling convention.
  static PyObject* call(const Entry& entry, PyObject* self, PyObject* given, PyObject* named) {
    const auto by = nanobind::borrow(entry.replacement);
    nanobind::object all = nanobind::borrow(given);
    if (!(entry.before.ml_flags & METH_VARARGS)) {
      all = nanobind::steal(given ? PyTuple_Pack(1, given) : PyTuple_New(0));
    }
    if (entry.method && all.is_valid()) {
      const auto first = nanobind::steal(PyTuple_Pack(1, self));
      all = nanobind::steal(PySequence_Concat(first.ptr(), all.ptr()));
    }
    return all.is_valid() ? PyObject_Call(by.ptr(), all.ptr(), named) : nullptr;
  }

  template <std::size_t k>
  static PyObject* named(PyObject* self, PyObject* given, PyObject* names) {
    const Entry& entry = entries[k];
    if (entry.replacement) return call(entry, self, given, names);
    return reinterpret_cast<PyCFunctionWithKeywords>(
        reinterpret_cast<void (*)()>(entry.before.ml_meth))(self, given, names);
  }

  template <std::size_t k>
  static PyObject* unnamed(PyObject* self, PyObject* given) {
    const Entry& entry = entries[k];
    if (entry.replacement) return call(entry, self, given, nullptr);
    return entry.before.ml_meth(self, given);
  }

  template <std::size_t... k>
  static constexpr std::array<PyCFunctionWithKeywords, kMost> all_named(std::index_sequence<k...>) {
    return {&named<k>...};
  }
  template <std::size_t... k>
  static constexpr std::array<PyCFunction, kMost> all_unnamed(std::index_sequence<k...>) {
    return {&unnamed<k>...};
  }
  static const std::array<PyCFunctionWithKeywords, kMost> with_keywords;
  static const std::array<PyCFunction, kMost> without_keywords;
};

inline const std::array<PyCFunctionWithKeywords, CFunctions::kMost> CFunctions::with_keywords =
    all_named(std::make_index_sequence<kMost>());
inline const std::array<PyCFunction, CFunctions::kMost> CFunctions::without_keywords =
    all_unnamed(std::make_index_sequence<kMost>());

}  // namespace recurra
