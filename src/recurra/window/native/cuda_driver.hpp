// CUDA's driver, loaded at run time: the compilation needs nothing of CUDA.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "driver.hpp"

namespace recurra {

class CudaDriver : public Driver {
 public:
  // Uses the current context, or that of the first device.
  CudaDriver() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library_) throw std::runtime_error(dlerror());
    find_all();
    require(init_(0), "cuInit");
    require(context_get_(&context_), "cuCtxGetCurrent");
    if (!context_) require(context_retain_(&context_, 0), "cuDevicePrimaryCtxRetain");
  }

  int enter() override { return context_set_(context_); }
  int allocate(Address* memory, std::uint64_t bytes) override { return allocate_(memory, bytes); }
  int release(Address memory) override { return release_(memory); }

  int stream_create(Handle* s) override { return stream_create_(s, kNonBlocking); }
  int stream_destroy(Handle s) override { return stream_destroy_(s); }
  int event_create(Handle* e) override { return event_create_(e, kWithoutTiming); }
  int event_destroy(Handle e) override { return event_destroy_(e); }
  int event_record(Handle e, Handle s) override { return event_record_(e, s); }
  int event_query(Handle e) override { return event_query_(e); }
  int stream_wait(Handle s, Handle e) override { return stream_wait_(s, e, 0); }
  int launch(const Kernel& k, std::uint64_t, Handle s) override {
    const Node n(k);
    return launch_(n.function, n.grid[0], n.grid[1], n.grid[2], n.block[0], n.block[1], n.block[2],
                   n.shared, s, n.parameters, nullptr);
  }

  int graph_create(Handle* g) override { return graph_create_(g, 0); }
  int graph_destroy(Handle g) override { return graph_destroy_(g); }
  int graph_add(Handle* node, Handle g, std::span<const Handle> after, const Kernel& k) override {
    const Node n(k);
    return graph_add_(node, g, after.data(), after.size(), &n);
  }
  int instantiate(Handle* runnable, Handle g) override { return instantiate_(runnable, g, 0); }
  int runnable_destroy(Handle r) override { return runnable_destroy_(r); }
  int runnable_set(Handle r, Handle node, const Kernel& k) override {
    const Node n(k);
    return runnable_set_(r, node, &n);
  }
  int runnable_launch(Handle r, std::uint64_t, Handle s) override { return runnable_launch_(r, s); }

 private:
  static constexpr unsigned kNonBlocking = 1, kWithoutTiming = 2;

  // CUDA_KERNEL_NODE_PARAMS_v1, and the array of `parameters`. CUDA copies both.
  struct Node {
    explicit Node(const Kernel& k)
        : function(reinterpret_cast<Handle>(k.function)),
          grid{k.grid[0], k.grid[1], k.grid[2]},
          block{k.block[0], k.block[1], k.block[2]},
          shared(k.shared) {
      for (const std::uint64_t& p : k.parameters) {
        addresses.push_back(const_cast<std::uint64_t*>(&p));
      }
      parameters = addresses.data();
    }
    Node(const Node&) = delete;

    Handle function;
    unsigned grid[3], block[3], shared;
    void** parameters;
    void** extra = nullptr;
    std::vector<void*> addresses;  // not CUDA's
  };

  static void require(int status, const char* call) {
    if (status) throw std::runtime_error(std::string(call) + " gives " + std::to_string(status));
  }

  template <class F>
  void find(F*& f, const char* name) {
    f = reinterpret_cast<F*>(dlsym(library_, name));
    if (!f) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
  }

  void find_all() {
    find(init_, "cuInit"), find(context_get_, "cuCtxGetCurrent");
    find(context_set_, "cuCtxSetCurrent"), find(context_retain_, "cuDevicePrimaryCtxRetain");
    find(allocate_, "cuMemAlloc_v2"), find(release_, "cuMemFree_v2");
    find(stream_create_, "cuStreamCreate"), find(stream_destroy_, "cuStreamDestroy_v2");
    find(event_create_, "cuEventCreate"), find(event_destroy_, "cuEventDestroy_v2");
    find(event_record_, "cuEventRecord"), find(event_query_, "cuEventQuery");
    find(stream_wait_, "cuStreamWaitEvent"), find(launch_, "cuLaunchKernel");
    find(graph_create_, "cuGraphCreate"), find(graph_destroy_, "cuGraphDestroy");
    find(graph_add_, "cuGraphAddKernelNode"), find(instantiate_, "cuGraphInstantiateWithFlags");
    find(runnable_destroy_, "cuGraphExecDestroy");
    find(runnable_set_, "cuGraphExecKernelNodeSetParams");
    find(runnable_launch_, "cuGraphLaunch");
  }

  void* library_;  // stays loaded
  Handle context_ = nullptr;
  int (*init_)(unsigned) = nullptr;
  int (*context_get_)(Handle*) = nullptr;
  int (*context_set_)(Handle) = nullptr;
  int (*context_retain_)(Handle*, int) = nullptr;
  int (*allocate_)(Address*, std::size_t) = nullptr;
  int (*release_)(Address) = nullptr;
  int (*stream_create_)(Handle*, unsigned) = nullptr;
  int (*stream_destroy_)(Handle) = nullptr;
  int (*event_create_)(Handle*, unsigned) = nullptr;
  int (*event_destroy_)(Handle) = nullptr;
  int (*event_record_)(Handle, Handle) = nullptr;
  int (*event_query_)(Handle) = nullptr;
  int (*stream_wait_)(Handle, Handle, unsigned) = nullptr;
  int (*launch_)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 Handle, void**, void**) = nullptr;
  int (*graph_create_)(Handle*, unsigned) = nullptr;
  int (*graph_destroy_)(Handle) = nullptr;
  int (*graph_add_)(Handle*, Handle, const Handle*, std::size_t, const Node*) = nullptr;
  int (*instantiate_)(Handle*, Handle, unsigned long long) = nullptr;
  int (*runnable_destroy_)(Handle) = nullptr;
  int (*runnable_set_)(Handle, Handle, const Node*) = nullptr;
  int (*runnable_launch_)(Handle, Handle) = nullptr;
};

}  // namespace recurra
