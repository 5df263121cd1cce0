// SPDX-License-Identifier: Apache-2.0
// What support/cuda_shim checks of CUDA kernels: each check finds a kernel with
// a fault.
#include "support/cuda_shim/faulty_kernels.h"
#include "support/cuda_shim/guarded_memory.h"
#include "support/cuda_shim/kernel_run.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera::runtime::cuda_shim_checks_test {

namespace {

using tests::cuda_shim::Fault;
using tests::cuda_shim::GuardedMemory;
using tests::cuda_shim::GuardedTensors;
using tests::cuda_shim::launch_exchange;
using tests::cuda_shim::launch_faulty;
using tests::cuda_shim::OptionsScope;

struct Case {
  Fault fault;
  std::string message; ///< in it
};

class CudaShimChecks : public ::testing::TestWithParam<Case> {
 protected:
  OptionsScope options_;
  GuardedTensors guarded_;
};

} // namespace

TEST_P(CudaShimChecks, FindTheFault) {
  const at::Tensor in = at::ones({128});
  const at::Tensor out = at::zeros({2});
  // Leaves values in shared memory, and is ordered before the next launch.
  launch_faulty(
      Fault::kNone, in.const_data_ptr<float>(), out.mutable_data_ptr<float>());
  EXPECT_DEATH(
      launch_faulty(
          GetParam().fault,
          in.const_data_ptr<float>(),
          out.mutable_data_ptr<float>()),
      GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    CudaShimChecks,
    ::testing::Values(
        Case{
            Fault::kReadsPastTheEnd,
            "4 bytes from byte 512 of a buffer of 512\n.*memcheck: thread 63 "
            "of block .1, 0. reads"},
        Case{Fault::kReadsBeforeTheBegin, "byte -4 of a buffer.*\n.*memcheck"},
        Case{Fault::kWritesPastTheEnd, "byte 8 of a buffer of 8\n.*writes"},
        Case{
            Fault::kPackEndsPastTheEnd,
            "16 bytes from byte 0 of a buffer of 8\n"},
        Case{Fault::kReadsSharedUnwritten, "initcheck: thread 5"},
        Case{Fault::kSharedWithoutBarrier, "racecheck.*another thread .*s, "},
        Case{Fault::kSharedOverwritten, "racecheck.*another thread .*s, "},
        Case{Fault::kWritesOfTwoThreads, "racecheck.*another thread"},
        Case{Fault::kWritesOfTwoBlocks, "racecheck.*another block"},
        Case{Fault::kReadsOfAnotherBlock, "racecheck.*another block"},
        Case{Fault::kPartOfTheBlockAtBarrier, "reach a barrier"},
        Case{Fault::kPartOfTheWarpInExchange, "no part in an exchange"},
        Case{Fault::kExitBeforeExchange, "no part in an exchange"},
        Case{Fault::kExchangeByOtherMask, "no part in an exchange"},
        Case{Fault::kExchangeWithoutItself, "does not name it"},
        Case{Fault::kExchangeWithLaneOutOfMask, "reads a lane that its mask"},
        Case{Fault::kExchangePastTheBlock, "no part in an exchange"},
        Case{
            Fault::kSharedOrderedByExchange,
            "racecheck.*another thread .*s, "}),
    [](const auto& info) {
      return "Fault" + std::to_string(static_cast<int>(info.param.fault));
    });

TEST(CudaShimChecksPass, AKernelWithoutFault) {
  const OptionsScope options;
  const GuardedTensors guarded;
  const at::Tensor in = at::arange(128, at::kFloat);
  const at::Tensor out = at::zeros({2});
  for (int launch = 0; launch < 2; ++launch) { // one is ordered before the next
    EXPECT_EQ(
        launch_faulty(
            Fault::kNone,
            in.const_data_ptr<float>(),
            out.mutable_data_ptr<float>()),
        cudaSuccess);
  }
  EXPECT_EQ(out[0].item<float>(), 63 * 64 / 2);
  EXPECT_EQ(out[1].item<float>(), 63 * 64 / 2 + 64 * 64);
}

TEST(CudaShimChecksPass, ExchangesOfPartsOfAWarp) {
  const OptionsScope options;
  const GuardedTensors guarded;
  const at::Tensor out = at::zeros({48});
  EXPECT_EQ(launch_exchange(out.mutable_data_ptr<float>()), cudaSuccess);
  for (int64_t i = 0; i < 48; ++i) {
    const auto other = static_cast<float>(1 + (i ^ (i % 2 == 0 ? 2 : 6)));
    EXPECT_EQ(out[i].item<float>(), other) << i;
  }
}

TEST(CudaShimChecksPass, GuardsEndTheProgram) {
  // Also where the access is not a kernel's.
  const GuardedMemory memory(100);
  volatile std::byte* data = memory.data();
  EXPECT_DEATH(data[128] = std::byte{1}, "");
  EXPECT_DEATH(data[-4096] = std::byte{1}, "");
  data[99] = std::byte{1};
}

} // namespace tessera::runtime::cuda_shim_checks_test
