// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/cuda_backend.h"

#include "support/paths.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace tessera::runtime::cuda_backend_test {

namespace {

bool is_mapped(const std::string& library) {
  return ::dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

/// Loads a driver that has no device and tells what CUDA_DEVICE_MAX_CONNECTIONS
/// was when it started; ends the process with this number.
[[noreturn]] void exit_with_connections_of_driver() {
  // The name by which load_cuda_backend() asks for it finds it from then on.
  void* driver = ::dlopen(tests::fake_cuda_driver().c_str(), RTLD_NOW);
  if (driver == nullptr) {
    std::_Exit(1);
  }
  const auto connections =
      reinterpret_cast<int (*)()>(::dlsym(driver, "connections_at_start"));
  const bool is_loaded = load_cuda_backend().loaded;
  std::_Exit(is_loaded ? 2 : connections());
}

} // namespace

// In processes of their own: the driver starts once.
TEST(CudaBackendDeathTest, TheDriverStartsWithItsDefaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  EXPECT_EXIT(
      exit_with_connections_of_driver(), ::testing::ExitedWithCode(32), "");
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
  EXPECT_EXIT(
      exit_with_connections_of_driver(), ::testing::ExitedWithCode(8), "");
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST(CudaBackend, IsLoadedOrSaysWhyNot) {
  const CudaBackend& backend = load_cuda_backend();
  if (::dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) {
    EXPECT_FALSE(backend.loaded);
    EXPECT_EQ(backend.reason.rfind("no CUDA driver: libcuda.so.1", 0), 0u)
        << backend.reason;
  }
  EXPECT_EQ(backend.loaded, backend.reason.empty()) << backend.reason;
  EXPECT_EQ(backend.loaded, backend.device_count > 0);
}

TEST(CudaBackend, CostsNothingWhereItIsNotLoaded) {
  const CudaBackend& backend = load_cuda_backend();
  EXPECT_EQ(is_mapped("libtorch_cuda.so"), backend.loaded);
}

TEST(CudaBackend, IsAskedOnce) {
  EXPECT_EQ(&load_cuda_backend(), &load_cuda_backend());
}

} // namespace tessera::runtime::cuda_backend_test
