// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/device_use.h"

#include "tessera/runtime/comm/nccl_registry.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <dlfcn.h>
#include <unistd.h>

#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera::runtime {

namespace {

/// The functions of NVML that are used here, with the ABI declared in nvml.h,
/// which is not available without a toolkit. They return 0 on success.
class Nvml {
 public:
  /// Null without NVML.
  static const Nvml* load() {
    static const Nvml kNvml;
    return kNvml.is_loaded_ ? &kNvml : nullptr;
  }

  /// Bytes of all processes.
  std::optional<int64_t> used_bytes(c10::Device device) const {
    void* handle = handle_of(device);
    Memory memory{};
    if (handle == nullptr || get_memory_(handle, &memory) != 0) {
      return std::nullopt;
    }
    return static_cast<int64_t>(memory.used);
  }

  /// Bytes of the process with this id.
  std::optional<int64_t> process_bytes(c10::Device device, unsigned pid) const {
    void* handle = handle_of(device);
    unsigned count = 0;
    // Without room, it tells how much it needs; other processes may start
    // before the next call.
    if (handle == nullptr) {
      return std::nullopt;
    }
    get_processes_(handle, &count, nullptr);
    constexpr unsigned kMore = 16;
    count += kMore;
    std::vector<Process> processes(count);
    if (get_processes_(handle, &count, processes.data()) != 0) {
      return std::nullopt;
    }
    processes.resize(count);
    for (const Process& process : processes) {
      if (process.pid == pid && process.used != kNotKnown) {
        return static_cast<int64_t>(process.used);
      }
    }
    return std::nullopt;
  }

 private:
  struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
  };
  struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance;
    unsigned compute_instance;
  };
  static constexpr unsigned long long kNotKnown = ~0ULL;

  Nvml() {
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          ::dlsym(library, name));
      return function != nullptr;
    };
    int (*init)() = nullptr;
    is_loaded_ =
        find(init, "nvmlInit_v2") &&
        find(get_handle_, "nvmlDeviceGetHandleByUUID") &&
        find(get_memory_, "nvmlDeviceGetMemoryInfo") &&
        find(get_processes_, "nvmlDeviceGetComputeRunningProcesses_v3") &&
        init() == 0;
  }

  /// "GPU-01234567-89ab-...", as NVML writes what cuda_device_identity()
  /// writes without hyphens.
  static std::string uuid_of(c10::Device device) {
    const std::string identity = cuda_device_identity(device.index());
    const size_t begin = identity.find('-') + 1;
    std::string uuid = identity.substr(0, begin);
    for (size_t i = begin; i < identity.size(); ++i) {
      const size_t digit = i - begin;
      const bool starts_field =
          digit == 8 || digit == 12 || digit == 16 || digit == 20;
      uuid += starts_field ? "-" : "";
      uuid += identity[i];
    }
    return uuid;
  }

  void* handle_of(c10::Device device) const {
    void* handle = nullptr;
    try {
      return get_handle_(uuid_of(device).c_str(), &handle) == 0 ? handle
                                                                : nullptr;
    } catch (const std::exception&) {
      return nullptr; // the device does not tell its identity
    }
  }

  bool is_loaded_ = false;
  int (*get_handle_)(const char* uuid, void** device) = nullptr;
  int (*get_memory_)(void* device, Memory* memory) = nullptr;
  int (*get_processes_)(void* device, unsigned* count, Process* processes) =
      nullptr;
};

bool has_context(c10::Device device) {
  return device.is_cuda() &&
         at::detail::getCUDAHooks().hasPrimaryContext(device.index());
}

struct ForeignBytes {
  std::mutex mutex;
  std::map<c10::DeviceIndex, int64_t> by_device;
};

/// Of the devices of this process.
ForeignBytes& foreign_bytes() {
  static ForeignBytes bytes;
  return bytes;
}

} // namespace

std::optional<int64_t> process_device_bytes(c10::Device device, int64_t least) {
  const Nvml* nvml = Nvml::load();
  const auto bytes =
      nvml ? nvml->process_bytes(device, static_cast<unsigned>(::getpid()))
           : std::nullopt;
  return bytes && *bytes >= least ? bytes : std::nullopt;
}

void note_foreign_device_bytes(c10::Device device) {
  const Nvml* nvml = Nvml::load();
  if (nvml == nullptr || has_context(device)) {
    return;
  }
  if (const auto used = nvml->used_bytes(device)) {
    const std::lock_guard lock(foreign_bytes().mutex);
    foreign_bytes().by_device[device.index()] = *used;
  }
}

int64_t foreign_device_bytes(c10::Device device) {
  const std::lock_guard lock(foreign_bytes().mutex);
  const auto& known = foreign_bytes().by_device;
  const auto found = known.find(device.index());
  return found == known.end() ? 0 : found->second;
}

} // namespace tessera::runtime
