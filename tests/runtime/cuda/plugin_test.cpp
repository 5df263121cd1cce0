// SPDX-License-Identifier: Apache-2.0
// The CUDA plugin loads and registers what it holds. Needs the CUDA libraries,
// but neither a driver nor a device.
#include "support/paths.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/mixed_norm.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <exception>
#include <string>

namespace tessera::runtime::plugin_test {

namespace {

/// Loads the plugin and returns its answer.
std::string start_plugin() {
  void* plugin = ::dlopen(tests::cuda_plugin().c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr) {
    return ::dlerror();
  }
  const auto start = reinterpret_cast<const char* (*)()>(
      ::dlsym(plugin, "tessera_cuda_start"));
  if (start == nullptr) {
    return ::dlerror();
  }
  const char* reason = start();
  return reason == nullptr ? "" : reason;
}

/// Whether a defined operator has a kernel for CUDA.
bool is_on_cuda(const char* name) {
  // Defines it.
  mixed_rms_norm(at::ones({1, 1}, at::kHalf), {1}, {}, 1);
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

/// Whether no plugin has registered the updates of optimizers. Without a
/// device, those that are registered fail otherwise.
bool lacks_updates() {
  try {
    update_cuda(UpdateShards());
  } catch (const std::exception& error) {
    return std::string(error.what()).find("the CUDA backend is not loaded") !=
           std::string::npos;
  }
  return false;
}

} // namespace

// Each test loads it in a process of its own.
TEST(CudaPlugin, RegistersItsKernelsWhenItIsLoaded) {
  const auto check = [] {
    EXPECT_TRUE(lacks_updates());
    EXPECT_EQ(start_plugin(), "");
    EXPECT_FALSE(lacks_updates());
    EXPECT_TRUE(is_on_cuda("tessera::mixed_norm"));
    EXPECT_TRUE(is_on_cuda("tessera::mixed_norm_backward"));
    ::_exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

TEST(CudaPlugin, SaysThatLibTorchWasAskedTooEarly) {
  const auto check = [] {
    at::globalContext().hasCUDA();
    const std::string reason = start_plugin();
    ::_exit(
        reason.find("call tessera::load_cuda_backend() first") ==
                std::string::npos
            ? 1
            : 0);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

} // namespace tessera::runtime::plugin_test
