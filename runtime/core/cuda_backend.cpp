// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/cuda_backend.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

namespace tessera::runtime {

namespace {

// The driver functions used here, with the ABI declared in cuda.h, which is not
// available without a toolkit.
using DriverInit = int (*)(unsigned int flags);
using DriverDeviceCount = int (*)(int* count);
using DriverDevice = int (*)(int* device, int ordinal);
using DriverDeviceName = int (*)(char* name, int length, int device);
// Returns null on success, else the reason why CUDA cannot be used.
using PluginStart = const char* (*)();

CudaBackend not_loaded(std::string reason) {
  return {.reason = std::move(reason)};
}

std::string last_dl_error() {
  const char* error = ::dlerror();
  return error == nullptr ? "unknown error" : error;
}

/// Folder of the library (or program) that contains this code.
std::filesystem::path self_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&load_cuda_backend), &info) == 0) {
    return {};
  }
  return std::filesystem::path(info.dli_fname).parent_path();
}

std::optional<CudaBackend>& replacement() {
  static std::optional<CudaBackend> backend;
  return backend;
}

/// Of `count` devices; empty where the driver does not tell.
std::vector<std::string> device_names(void* driver, int count) {
  const auto get =
      reinterpret_cast<DriverDevice>(::dlsym(driver, "cuDeviceGet"));
  const auto name_of =
      reinterpret_cast<DriverDeviceName>(::dlsym(driver, "cuDeviceGetName"));
  std::vector<std::string> names(static_cast<size_t>(count));
  for (int i = 0; get != nullptr && name_of != nullptr && i < count; ++i) {
    int device = 0;
    std::array<char, 256> name{};
    if (get(&device, i) == 0 &&
        name_of(name.data(), static_cast<int>(name.size()) - 1, device) == 0) {
      names[static_cast<size_t>(i)] = name.data();
    }
  }
  return names;
}

CudaBackend load() {
  // The queues of a device, 8 by default. Streams that share one wait for each
  // other: compute, lanes and those of NCCL are more. Read when the driver
  // starts; a value that is set takes precedence.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // Stays loaded, because the plugin needs it too.
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return not_loaded("no CUDA driver: " + last_dl_error());
  }
  const auto init = reinterpret_cast<DriverInit>(::dlsym(driver, "cuInit"));
  const auto device_count =
      reinterpret_cast<DriverDeviceCount>(::dlsym(driver, "cuDeviceGetCount"));
  if (init == nullptr || device_count == nullptr) {
    return not_loaded("libcuda.so.1 is not a CUDA driver: " + last_dl_error());
  }
  CudaBackend backend;
  int error = init(0);
  if (error == 0) {
    error = device_count(&backend.device_count);
  }
  if (error != 0 || backend.device_count == 0) {
    return not_loaded(
        "no CUDA device: the driver returned " + std::to_string(error));
  }

  backend.device_names = device_names(driver, backend.device_count);

  const auto path = self_folder() / "libtessera_cuda.so";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return not_loaded(
        "Tessera was built without CUDA code (" + path.string() +
        " does not exist); configure with -DTESSERA_CUDA=ON");
  }
  // Global, so that exceptions and types are the same on both sides.
  void* plugin = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr) {
    return not_loaded("the CUDA plugin cannot be loaded: " + last_dl_error());
  }
  const auto start =
      reinterpret_cast<PluginStart>(::dlsym(plugin, "tessera_cuda_start"));
  if (start == nullptr) {
    return not_loaded(path.string() + " is not Tessera's CUDA plugin");
  }
  if (const char* reason = start()) {
    return not_loaded(reason);
  }
  // Beside the programs of tests: lets ranks share a device.
  const auto shared = self_folder() / "libtessera_shared_device.so";
  if (std::filesystem::exists(shared, ignored) &&
      ::dlopen(shared.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return not_loaded(
        "the plug-in for ranks that share a device cannot be loaded: " +
        last_dl_error() + "; build it again, or remove it");
  }
  backend.loaded = true;
  return backend;
}

} // namespace

const CudaBackend& load_cuda_backend() {
  if (replacement()) {
    return *replacement();
  }
  static const CudaBackend kBackend = load();
  return kBackend;
}

void replace_cuda_backend(CudaBackend backend) {
  replacement() = std::move(backend);
}

} // namespace tessera::runtime
