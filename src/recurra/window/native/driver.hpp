// The few functions of a GPU driver that launches need, and the one of CUDA, found when it is run:
// nothing of CUDA is there when this is compiled.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace recurra {

struct Kernel {
  std::uint64_t function = 0;  // CUfunction
  std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
  unsigned shared = 0;
  std::vector<std::uint64_t> parameters;  // eight bytes each
  double us = 1;                          // for the stub: how long it runs
};

// Statuses are CUDA's: 0 is success.
struct Driver {
  using Handle = void*;  // of a stream, of an event
  static constexpr int kFine = 0, kNotReady = 600;

  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;
  virtual int stream_create(Handle* stream) = 0;
  virtual int stream_destroy(Handle stream) = 0;
  virtual int event_create(Handle* event) = 0;
  virtual int event_destroy(Handle event) = 0;
  virtual int event_record(Handle event, Handle stream) = 0;
  virtual int event_query(Handle event) = 0;
  virtual int stream_wait(Handle stream, Handle event) = 0;
  virtual int launch(const Kernel& kernel, std::uint64_t ticket, Handle stream) = 0;
};

class CudaDriver : public Driver {
 public:
  CudaDriver() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library_) throw std::runtime_error(dlerror());
    find(init_, "cuInit"), find(stream_create_, "cuStreamCreate");
    find(stream_destroy_, "cuStreamDestroy_v2"), find(event_create_, "cuEventCreate");
    find(event_destroy_, "cuEventDestroy_v2"), find(event_record_, "cuEventRecord");
    find(event_query_, "cuEventQuery"), find(stream_wait_, "cuStreamWaitEvent");
    find(launch_, "cuLaunchKernel");
    if (const int status = init_(0)) {
      throw std::runtime_error("cuInit gives " + std::to_string(status));
    }
  }

  int stream_create(Handle* s) override { return stream_create_(s, kNonBlocking); }
  int stream_destroy(Handle s) override { return stream_destroy_(s); }
  int event_create(Handle* e) override { return event_create_(e, kWithoutTiming); }
  int event_destroy(Handle e) override { return event_destroy_(e); }
  int event_record(Handle e, Handle s) override { return event_record_(e, s); }
  int event_query(Handle e) override { return event_query_(e); }
  int stream_wait(Handle s, Handle e) override { return stream_wait_(s, e, 0); }
  int launch(const Kernel& k, std::uint64_t, Handle s) override {
    std::vector<void*> parameters;
    for (const std::uint64_t& p : k.parameters) parameters.push_back(const_cast<std::uint64_t*>(&p));
    return launch_(reinterpret_cast<Handle>(k.function), k.grid[0], k.grid[1], k.grid[2],
                   k.block[0], k.block[1], k.block[2], k.shared, s, parameters.data(), nullptr);
  }

 private:
  static constexpr unsigned kNonBlocking = 1, kWithoutTiming = 2;

  template <class F>
  void find(F*& f, const char* name) {
    f = reinterpret_cast<F*>(dlsym(library_, name));
    if (!f) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
  }

  void* library_;  // stays loaded
  int (*init_)(unsigned) = nullptr;
  int (*stream_create_)(Handle*, unsigned) = nullptr;
  int (*stream_destroy_)(Handle) = nullptr;
  int (*event_create_)(Handle*, unsigned) = nullptr;
  int (*event_destroy_)(Handle) = nullptr;
  int (*event_record_)(Handle, Handle) = nullptr;
  int (*event_query_)(Handle) = nullptr;
  int (*stream_wait_)(Handle, Handle, unsigned) = nullptr;
  int (*launch_)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 Handle, void**, void**) = nullptr;
};

}  // namespace recurra
