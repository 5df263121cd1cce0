// SPDX-License-Identifier: Apache-2.0
// Operators of a dry run have shapes, bytes and arithmetic, but no memory.
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/dry_run/engine_reads.h"

#include "support/expect_error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/memory/product_padding.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::runtime::dry_run_test {

namespace {

double flops_of(const DryRun& run, const std::string& name) {
  double flops = 0;
  for (const OperatorWork& work : run.work()) {
    flops += work.name == name ? work.flops : 0;
  }
  return flops;
}

/// An operator of others, without Meta kernel.
std::vector<at::Tensor> halves(const at::Tensor& x) {
  const int64_t half = x.size(0) / 2;
  return {
      x.narrow(0, 0, half).clone(),
      x.narrow(0, half, x.size(0) - half).clone()};
}

TORCH_LIBRARY(tessera_dry_run_test, library) {
  library.def("halves(Tensor x) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(tessera_dry_run_test, CPU, library) {
  library.impl("halves", &halves);
}

} // namespace

TEST(DryRun, TakesNoMemory) {
  DryRun run;
  // 4 TiB each.
  const at::Tensor a = torch::ones({1 << 20, 1 << 20});
  const at::Tensor b = torch::mm(a, a);
  EXPECT_EQ(b.sizes(), a.sizes());
  EXPECT_EQ(run.heap().live_bytes(), int64_t{8} << 40);
  EXPECT_EQ(flops_of(run, "aten::mm"), 2.0 * (1LL << 60));
  EXPECT_TRUE(is_dry_memory(b.const_data_ptr()));
}

TEST(DryRun, FreesWhatLibTorchFrees) {
  DryRun run;
  {
    at::Tensor x = torch::empty({1 << 20}).requires_grad_();
    EXPECT_EQ(run.heap().live_bytes(), 4 << 20);
    at::Tensor y = x.exp(); // keeps its result
    y = y * 2;
    EXPECT_EQ(run.heap().live_bytes(), 12 << 20);
    y.sum().backward();
    y.reset();
    // x and its gradient.
    EXPECT_EQ(run.heap().live_bytes(), 8 << 20);
    EXPECT_GE(run.heap().peak_bytes(), 16 << 20);
  }
  EXPECT_EQ(run.heap().live_bytes(), 0);
}

TEST(DryRun, ComputesWhatHasValues) {
  const at::Tensor before = torch::tensor({3, 1, 2});
  DryRun run;
  const at::Tensor mask = before.ne(1);
  EXPECT_EQ(mask.sum().item<int64_t>(), 2);
  EXPECT_EQ((torch::arange(100) * before[0]).max().item<int64_t>(), 297);
  EXPECT_TRUE(run.assumptions().empty());
  // Weights have none.
  EXPECT_EQ(torch::rand({3}).sum().item<float>(), 0);
  EXPECT_EQ(run.assumptions().size(), 1);
}

TEST(DryRun, DoesNotNoteWhatTheEngineReads) {
  DryRun run;
  const at::Tensor x = torch::rand({3});
  {
    const EngineReads outer;
    { const EngineReads inner; }
    EXPECT_EQ(x.sum().item<float>(), 0);
  }
  EXPECT_TRUE(run.assumptions().empty());
  x.sum().item<float>();
  EXPECT_EQ(run.assumptions().size(), 1);
}

TEST(DryRun, NamesOperatorsWhoseShapesDependOnValues) {
  DryRun run;
  const at::Tensor x = torch::rand({100});
  expect_error([&] { x.nonzero(); }, {"aten::nonzero", "dry run"});
  // LibTorch's Meta kernel asks for the number of true elements.
  expect_error(
      [&] { x.index({x > 0}); },
      {"aten::index", "depends on the values", "torch::where"});
  at::Tensor out = torch::empty({0}, torch::kLong);
  expect_error([&] { at::nonzero_out(out, x); }, {"aten::nonzero", "dry run"});
}

TEST(DryRun, WritesSelectionsOfWhatHasValues) {
  const at::Tensor before = torch::tensor({3, 0, 2});
  DryRun run;
  at::Tensor out = torch::empty({0}, torch::kLong);
  at::nonzero_out(out, before);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 1}));
  EXPECT_EQ(out.max().item<int64_t>(), 2);
}

TEST(DryRun, RepeatsByAGivenSize) {
  DryRun run;
  const at::Tensor x = torch::rand({1000, 4});
  const at::Tensor repeats = torch::randint(3, {1000}, torch::kLong);
  expect_error(
      [&] { x.repeat_interleave(repeats, 0); }, {"aten::repeat_interleave"});
  EXPECT_EQ(
      x.repeat_interleave(repeats, 0, 1500).sizes(),
      at::IntArrayRef({1500, 4}));
}

TEST(DryRun, FoldsColumnsWithoutBatch) {
  DryRun run;
  EXPECT_EQ(
      at::col2im(
          torch::rand({int64_t{9} * 64, 12}),
          {5, 6},
          {3, 3},
          {1, 1},
          {0, 0},
          {1, 1})
          .sizes(),
      at::IntArrayRef({64, 5, 6}));
}

TEST(DryRun, TriesOperatorsOfOthersOnZeros) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("tessera_dry_run_test::halves", "")
                      .typed<std::vector<at::Tensor>(const at::Tensor&)>();
  DryRun run;
  const at::Tensor x = torch::rand({101, 3});
  const std::vector<at::Tensor> first = op.call(x);
  ASSERT_EQ(first.size(), 2);
  EXPECT_EQ(first[0].sizes(), at::IntArrayRef({50, 3}));
  EXPECT_EQ(first[1].sizes(), at::IntArrayRef({51, 3}));
  // Which may not be all that it can make.
  EXPECT_EQ(run.assumptions().size(), 1);
  const std::vector<at::Tensor> second = op.call(x);
  EXPECT_NE(second[0].const_data_ptr(), first[0].const_data_ptr());
}

TEST(DryRun, KeepsWhatTheDeviceKeeps) {
  const auto kept = [](c10::DeviceType device) {
    DryRun run(device);
    const at::Tensor x =
        torch::empty({2, 4, 256, 64}, torch::kBFloat16).requires_grad_();
    const int64_t before = run.heap().live_bytes();
    const at::Tensor y =
        torch::scaled_dot_product_attention(x, x, x, {}, 0.1, true);
    return run.heap().live_bytes() - before;
  };
  constexpr int64_t kOut = 2 * 4 * 256 * 64 * 2;
  constexpr int64_t kSums = 2 * 4 * 256 * 4;
  // Flash attention: the result, one number a row, the generator's state.
  EXPECT_EQ(kept(c10::kCUDA), kOut + kSums + 16);
  // The CPU makes attention weights and their masks.
  EXPECT_GT(kept(c10::kCPU), kOut + 2 * 2 * 4 * 256 * 256 * 2);
}

TEST(DryRun, CountsTheCopiesOfOddProductsOnCuda) {
  const auto peak = [](c10::DeviceType device) {
    DryRun run(device);
    const at::Tensor x = torch::empty({1024, 1024}, torch::kBFloat16);
    const at::Tensor weight = torch::empty({1025, 1024}, torch::kBFloat16);
    run.heap().reset_peak();
    const int64_t before = run.heap().live_bytes();
    const at::Tensor y = torch::mm(x, weight.t());
    EXPECT_EQ(run.heap().live_bytes() - before, 1024 * 1025 * 2);
    return run.heap().peak_bytes() - before;
  };
  EXPECT_LT(peak(c10::kCPU), (1025 + 1032) * 1024 * 2);
  // The weight and the product, of 1032 tokens.
  EXPECT_EQ(peak(c10::kCUDA), (1025 + 2 * 1032) * 1024 * 2);
  plan_padded_products(false);
  EXPECT_EQ(peak(c10::kCUDA), 1024 * 1025 * 2);
  plan_padded_products(true);
}

/// Pages that the system has given this process so far.
int64_t pages_taken() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  return usage.ru_minflt;
}

// Gradients, buffers and masks are zeros first, in every layer.
TEST(DryRun, LargeZerosTakeNoPages) {
  DryRun run;
  torch::zeros({int64_t{4} << 20});
  const int64_t before = pages_taken();
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(torch::zeros({int64_t{4} << 20}).numel(), 4 << 20);
  }
  // 16 MiB each are 4096 pages.
  EXPECT_LT(pages_taken() - before, 1024);
}

// Experts keep thousands of small tensors each, of which there are thousands.
TEST(DryRun, SmallBlocksWithoutValuesTakeNoPages) {
  DryRun run;
  const at::Tensor a = torch::empty({128, 64});
  const at::Tensor b = torch::empty({64, 96});
  std::vector<at::Tensor> kept;
  const int64_t before = pages_taken();
  for (int i = 0; i < 2048; ++i) {
    kept.push_back(torch::mm(a, b)); // 48 KiB, 12 pages
  }
  EXPECT_LT(pages_taken() - before, 6144); // of 24576
  // Written ones read as zeros when they are given out again.
  const auto heap = std::make_shared<DryHeap>();
  for (const bool has_values : {false, true, false}) {
    const c10::DataPtr block = heap->allocate(20000, has_values);
    auto* bytes = static_cast<char*>(block.get());
    EXPECT_EQ(bytes[19999], 0);
    bytes[19999] = 1;
  }
}

// Freed memory is given out again: as zeros, or to be written.
TEST(DryRun, UsesAddressesAgain) {
  DryRun run;
  at::Tensor x = torch::empty({1 << 20});
  const void* address = x.const_data_ptr();
  x.reset();
  x = torch::empty({1 << 20});
  EXPECT_EQ(x.const_data_ptr(), address);
  const auto computed = [] {
    return torch::arange(1 << 20, torch::kFloat).add(1);
  };
  computed();
  const int64_t before = pages_taken();
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(computed()[7].item<float>(), 8);
  }
  EXPECT_LT(pages_taken() - before, 1024); // 2048 each
  const at::Tensor unwritten = torch::empty({1 << 20});
  EXPECT_EQ(static_cast<const float*>(unwritten.const_data_ptr())[7], 0);
}

TEST(DryRun, KeepsNoLargeBlocksThatWereWritten) {
  const auto heap = std::make_shared<DryHeap>();
  constexpr size_t kBytes = size_t{64} << 20;
  const auto first_byte = [](const c10::DataPtr& block) {
    return static_cast<char*>(block.get());
  };
  {
    const c10::DataPtr block = heap->allocate(kBytes, /*has_values=*/true);
    *first_byte(block) = 1;
  }
  const c10::DataPtr block = heap->allocate(kBytes, /*has_values=*/true);
  EXPECT_EQ(*first_byte(block), 0);
}

/// Convolutions that LibTorch does itself and not by oneDNN: 1 x 1 filters on
/// one thread, and float64. The most memory is that of a real run.
TEST(DryRun, KnowsTheConvolutionsOfOneThread) {
  install_cpu_memory_counter();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  struct Filter {
    int64_t size;
    int64_t stride;
    int64_t padding;
    at::ScalarType dtype;
  };
  for (const Filter& filter :
       {Filter{1, 1, 0, at::kFloat},
        Filter{3, 1, 1, at::kDouble},
        Filter{4, 4, 0, at::kDouble}}) {
    SCOPED_TRACE(filter.size);
    const auto train = [&] {
      const at::Tensor x =
          torch::zeros({2, 16, 32, 32}, filter.dtype).requires_grad_();
      const at::Tensor weight =
          torch::zeros({8, 16, filter.size, filter.size}, filter.dtype)
              .requires_grad_();
      const at::Tensor y =
          torch::conv2d(x, weight, {}, filter.stride, filter.padding);
      y.sum().backward();
      return y.numel();
    };
    const int64_t before = cpu_bytes_live();
    reset_cpu_bytes_peak();
    train();
    const int64_t measured = cpu_bytes_peak() - before;
    DryRun run;
    const int64_t outputs = train();
    // But for the headers of blocks, which are few.
    EXPECT_NEAR(
        static_cast<double>(run.heap().peak_bytes()),
        static_cast<double>(measured),
        1024);
    EXPECT_EQ(
        flops_of(run, "aten::convolution"),
        2.0 * static_cast<double>(outputs * 16 * filter.size * filter.size));
  }
  at::set_num_threads(threads);
}

/// oneDNN's working memory, which depends on the processor and the threads.
TEST(DryRun, KnowsTheMemoryOfProductsOf16Bits) {
  install_cpu_memory_counter();
  struct Product {
    int64_t m;
    int64_t n;
    int64_t k;
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Product& size :
         {Product{512, 384, 128}, Product{64, 1000, 96}, Product{1, 70, 300}}) {
      const auto empty = [&](at::IntArrayRef sizes) {
        return torch::empty(sizes, dtype); // zeros are small enough to compute
      };
      const std::vector<std::function<at::Tensor()>> products{
          [&] {
            return empty({size.m, size.k}).mm(empty({size.k, size.n}));
          },
          [&] {
            return empty({size.m, size.k}).mm(empty({size.n, size.k}).t());
          },
          [&] {
            return empty({size.k, size.m}).t().mm(empty({size.k, size.n}));
          },
          [&] {
            const at::Tensor sum = empty({size.m, size.n});
            return sum.addmm_(empty({size.m, size.k}), empty({size.k, size.n}));
          },
          [&] {
            return torch::linear(
                empty({size.m, size.k}),
                empty({size.n, size.k}),
                empty({size.n}));
          },
          [&] {
            return torch::bmm(
                empty({3, size.m, size.k}),
                empty({3, size.n, size.k}).transpose(1, 2));
          },
          [&] { // heads of one text
            return torch::bmm(
                empty({size.m, 3, size.k}).permute({1, 0, 2}),
                empty({size.n, 3, size.k}).permute({1, 2, 0}));
          },
          [&] { // one head of several
            return empty({size.m, 3 * size.k})
                .narrow(1, size.k, size.k)
                .mm(empty({size.n, size.k}).t());
          }};
      for (size_t i = 0; i < products.size(); ++i) {
        SCOPED_TRACE(formatted("{} {} x {}", i, size.m, size.n));
        const int64_t before = cpu_bytes_live();
        reset_cpu_bytes_peak();
        products[i]();
        const int64_t measured = cpu_bytes_peak() - before;
        DryRun run;
        products[i]();
        // But for the headers of blocks.
        EXPECT_NEAR(
            static_cast<double>(run.heap().peak_bytes()),
            static_cast<double>(measured),
            512);
      }
    }
  }
}

// As many tokens and words as would take hours to multiply.
TEST(DryRun, MultipliesNothingToKnowTheMemoryOfIt) {
  DryRun run;
  const at::Tensor x = torch::empty({1 << 20, 1 << 13}, torch::kBFloat16);
  const at::Tensor words = torch::empty({1 << 18, 1 << 13}, torch::kBFloat16);
  const at::Tensor y = x.mm(words.t());
  const int64_t all = run.heap().live_bytes();
  EXPECT_EQ(all, 2 * (x.numel() + words.numel() + y.numel()));
  EXPECT_LT(run.heap().peak_bytes() - all, int64_t{64} << 20);
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
}

/// Flash attention of 16 bits rounds its weights.
TEST(DryRun, KnowsTheMemoryOfAttention) {
  install_cpu_memory_counter();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t length : {64, 200, 768}) {
      SCOPED_TRACE(length);
      const auto attend = [&] {
        const at::Tensor x = torch::zeros({1, 2, length, 24}, dtype);
        torch::scaled_dot_product_attention(x, x, x, {}, 0, true);
      };
      const int64_t before = cpu_bytes_live();
      reset_cpu_bytes_peak();
      attend();
      const int64_t measured = cpu_bytes_peak() - before;
      DryRun run;
      attend();
      EXPECT_NEAR(
          static_cast<double>(run.heap().peak_bytes()),
          static_cast<double>(measured),
          512);
    }
  }
}

TEST(DryRun, EndsWithItsScope) {
  { DryRun run; }
  EXPECT_EQ(DryRun::current(), nullptr);
  const at::Tensor x = torch::ones({1 << 16});
  EXPECT_FALSE(is_dry_memory(x.const_data_ptr()));
  EXPECT_EQ(x.sum().item<float>(), 1 << 16);
}

TEST(DryRun, MemoryOutlivesIt) {
  at::Tensor x;
  {
    DryRun run;
    x = torch::ones({1 << 20});
  }
  EXPECT_TRUE(is_dry_memory(x.const_data_ptr()));
  x.reset();
}

} // namespace tessera::runtime::dry_run_test
