// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/cuda_backend.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::runtime::cuda_backend_test {

namespace {

bool is_mapped(const std::string& library) {
  return ::dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

} // namespace

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
