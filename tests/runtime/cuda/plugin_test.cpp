// SPDX-License-Identifier: Apache-2.0
// The CUDA plugin loads and registers what it holds. Needs the CUDA libraries,
// but neither a driver nor a device.
#include "support/expect_error.h"
#include "support/paths.h"
#include "tessera/runtime/comm/cuda_transport.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/mixed_norm.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
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

/// Has the process use the driver of fake_cuda_driver.cpp.
void load_fake_driver(const char* devices, const char* version) {
  ::setenv("FAKE_CUDA_DEVICES", devices, 1);
  if (version != nullptr) {
    ::setenv("FAKE_CUDA_VERSION", version, 1);
  }
  // The name by which others ask for it finds it from then on.
  EXPECT_NE(::dlopen(tests::fake_cuda_driver().c_str(), RTLD_NOW), nullptr)
      << ::dlerror();
}

/// Ends the process with 0 if the text of CudaBackend::reason contains `part`.
[[noreturn]] void exit_with_reason(const char* version, const char* part) {
  load_fake_driver("1", version);
  const CudaBackend& backend = load_cuda_backend();
  EXPECT_FALSE(backend.loaded);
  EXPECT_EQ(backend.device_count, 0);
  EXPECT_NE(backend.reason.find(part), std::string::npos) << backend.reason;
  // Jobs use the CPU; what needs a device says why there is none.
  EXPECT_TRUE(init().device().is_cpu());
  expect_error(
      [] { make_nccl_backend(c10::make_intrusive<c10d::HashStore>(), {}); },
      {"needs a CUDA device", part});
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

} // namespace

// Each test loads it in a process of its own.
TEST(CudaPlugin, RegistersItsKernelsWhenItIsLoaded) {
  const auto check = [] {
    EXPECT_TRUE(lacks_updates());
    const std::string reason = start_plugin();
    // Its answer where there is no driver.
    EXPECT_TRUE(
        reason.empty() || reason.find("cannot use it") != std::string::npos)
        << reason;
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

// The driver has a device, but every later call fails.
TEST(CudaPlugin, SaysThatADriverIsOfNoUse) {
  const char* kCannot = "CUDA's runtime (13.";
  EXPECT_EXIT(
      exit_with_reason(nullptr, kCannot), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      exit_with_reason("13000", kCannot), ::testing::ExitedWithCode(0), "");
}

TEST(CudaPlugin, SaysThatADriverIsTooOld) {
  EXPECT_EXIT(
      exit_with_reason("11080", "insufficient for CUDA runtime version"),
      ::testing::ExitedWithCode(0),
      "");
}

// What ranks that share a device need is in drivers from CUDA 12.0 on.
TEST(CudaPlugin, SaysWhichFunctionADriverLacks) {
  const auto check = [] {
    load_fake_driver("1", "11080");
    EXPECT_NE(start_plugin().find("cannot use it"), std::string::npos);
    EXPECT_EQ(shared_device_backend(), nullptr);
    EXPECT_NE(
        ::dlopen(tests::shared_device_plugin().c_str(), RTLD_NOW), nullptr)
        << ::dlerror();
    try {
      (*shared_device_backend())(
          c10::make_intrusive<c10d::HashStore>(),
          0,
          1,
          0,
          std::chrono::seconds(1));
      ADD_FAILURE() << "there is no such driver";
    } catch (const std::exception& error) {
      EXPECT_NE(
          std::string(error.what()).find("cuStreamWriteValue32"),
          std::string::npos)
          << error.what();
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

} // namespace tessera::runtime::plugin_test
