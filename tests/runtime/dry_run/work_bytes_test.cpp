// SPDX-License-Identifier: Apache-2.0
// The bytes and operations of operators and kernels in a dry run, against
// values that were worked out by hand.
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/mixed_norm.h"
#include "tessera/runtime/kernels/pack_segments.h"
#include "tessera/runtime/kernels/update_segments.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace tessera::runtime::work_bytes_test {

namespace {

constexpr int64_t kRows = 4096;
constexpr int64_t kWidth = 1024;
constexpr double kElements = static_cast<double>(kRows * kWidth);

at::Tensor values(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return torch::empty(sizes, dtype);
}

/// The row of an operator that was called once; empty if there is none.
OperatorWork row_of(
    const std::vector<OperatorWork>& rows,
    const std::string& name) {
  OperatorWork found;
  for (const OperatorWork& row : rows) {
    if (row.name == name) {
      EXPECT_EQ(row.calls, 1) << name;
      EXPECT_TRUE(found.name.empty()) << name;
      found = row;
    }
  }
  EXPECT_EQ(found.name, name);
  return found;
}

/// Of the only operator that `call` calls.
template <typename Call>
double bytes_of(const std::string& name, const Call& call) {
  DryRun run;
  const auto results = call(run);
  return row_of(run.work(), name).bytes;
}

} // namespace

TEST(WorkBytes, OfALinearLayer) {
  DryRun run;
  constexpr int64_t kOut = 512;
  const at::Tensor x = values({kRows, kWidth}).requires_grad_();
  const at::Tensor weight = values({kOut, kWidth}).requires_grad_();
  const at::Tensor bias = values({kOut}).requires_grad_();
  const at::Tensor y = torch::linear(x, weight, bias);
  const OperatorWork forward = row_of(run.work(), "aten::addmm");
  EXPECT_EQ(
      forward.bytes, 4.0 * (kElements + kOut * kWidth + kOut + kRows * kOut));
  EXPECT_EQ(forward.flops, 2.0 * kElements * kOut);
  EXPECT_EQ(forward.dtype, at::kFloat);
  EXPECT_FALSE(forward.in_backward);
  run.forget_work();
  y.backward(values({kRows, kOut}));
  double bytes = 0;
  double flops = 0;
  for (const OperatorWork& work : run.work()) {
    if (work.name == "aten::mm") {
      EXPECT_TRUE(work.in_backward);
      bytes += work.bytes;
      flops += work.flops;
    }
  }
  // Of x and of the weight.
  EXPECT_EQ(bytes, 2 * 4.0 * (kElements + kOut * kWidth + kRows * kOut));
  EXPECT_EQ(flops, 2 * 2.0 * kElements * kOut);
  // That of the bias is a sum over rows.
  EXPECT_EQ(row_of(run.work(), "aten::sum").bytes, 4.0 * (kRows * kOut + kOut));
}

TEST(WorkBytes, OfElementwiseOperators) {
  const double x = 4 * kElements;
  const auto one = [](DryRun&) { return values({kRows, kWidth}); };
  EXPECT_EQ(
      bytes_of("aten::mul", [&](DryRun& run) { return one(run) * one(run); }),
      3 * x);
  // Read once.
  EXPECT_EQ(
      bytes_of(
          "aten::mul",
          [&](DryRun& run) {
            const at::Tensor a = one(run);
            return a * a;
          }),
      2 * x);
  // An expanded row is read once, and small.
  EXPECT_EQ(
      bytes_of(
          "aten::add",
          [&](DryRun& run) {
            return one(run) + values({1, kWidth}).expand({kRows, kWidth});
          }),
      2 * x + 4 * kWidth);
  EXPECT_EQ(
      bytes_of(
          "aten::add_", [&](DryRun& run) { return one(run).add_(one(run)); }),
      3 * x);
  EXPECT_EQ(
      bytes_of("aten::fill_", [&](DryRun& run) { return one(run).fill_(1); }),
      x);
  EXPECT_EQ(
      bytes_of(
          "aten::copy_",
          [&](DryRun& run) {
            return one(run).copy_(values({kRows, kWidth}, at::kBFloat16));
          }),
      x + x / 2);
  EXPECT_EQ(
      bytes_of(
          "aten::_softmax", [&](DryRun& run) { return one(run).softmax(1); }),
      2 * x);
}

TEST(WorkBytes, OfLookupsAreThoseOfRows) {
  DryRun run;
  const at::Tensor table = values({50000, kWidth}).requires_grad_();
  const at::Tensor ids = torch::zeros({kRows}, at::kLong);
  const at::Tensor rows = torch::embedding(table, ids);
  // The operator that reads rows has another name by LibTorch's version.
  double bytes = 0;
  for (const OperatorWork& work : run.work()) {
    bytes += work.calls > 0 && work.name != "aten::zeros" ? work.bytes : 0;
  }
  EXPECT_LT(bytes, 1.1 * (8.0 * kRows + 2 * 4 * kElements) + 8.0 * kRows);
  EXPECT_GE(bytes, 8.0 * kRows + 2 * 4 * kElements);
  run.forget_work();
  rows.backward(values({kRows, kWidth}));
  EXPECT_EQ(
      row_of(run.work(), "aten::embedding_dense_backward").bytes,
      8.0 * kRows + 4 * (kElements + 50000.0 * kWidth + kElements));
}

TEST(WorkBytes, OfACrossEntropyDoNotReadAllLogits) {
  DryRun run;
  const at::Tensor x = values({kRows, kWidth}).requires_grad_();
  torch::cross_entropy_loss(x, torch::zeros({kRows}, at::kLong)).backward();
  const auto work = run.work();
  // 32 bytes are read of each row; two numbers are the result.
  EXPECT_EQ(
      row_of(work, "aten::nll_loss_forward").bytes, kRows * (8.0 + 32) + 8);
  EXPECT_EQ(
      row_of(work, "aten::nll_loss_backward").bytes,
      kRows * (8.0 + 32) + 4 * kElements);
  EXPECT_EQ(row_of(work, "aten::_log_softmax").bytes, 2 * 4 * kElements);
  EXPECT_EQ(
      row_of(work, "aten::_log_softmax_backward_data").bytes,
      3 * 4 * kElements);
}

TEST(WorkBytes, OfNorms) {
  {
    DryRun run;
    const at::Tensor x = values({kRows, kWidth}).requires_grad_();
    const at::Tensor weight = values({kWidth}).requires_grad_();
    const at::Tensor bias = values({kWidth}).requires_grad_();
    const at::Tensor y = torch::layer_norm(x, {kWidth}, weight, bias);
    const double statistics = 4.0 * 2 * kRows;
    EXPECT_EQ(
        row_of(run.work(), "aten::native_layer_norm").bytes,
        2 * 4 * kElements + 2 * 4.0 * kWidth + statistics);
    run.forget_work();
    y.backward(values({kRows, kWidth}));
    // x and the gradient twice; weight and bias and their gradients.
    EXPECT_EQ(
        row_of(run.work(), "aten::native_layer_norm_backward").bytes,
        5 * 4 * kElements + 4 * 4.0 * kWidth + statistics);
  }
  DryRun run(c10::kCUDA);
  const at::Tensor x = values({kRows, kWidth}, at::kBFloat16).requires_grad_();
  const at::Tensor weight = values({kWidth}).requires_grad_();
  const at::Tensor y = mixed_rms_norm(x, {kWidth}, weight, 1e-6);
  ASSERT_EQ(run.work().size(), 1U) << "one kernel";
  EXPECT_EQ(
      row_of(run.work(), "tessera::mixed_norm").bytes,
      2 * 2 * kElements + 4.0 * kWidth + 4.0 * kRows);
  run.forget_work();
  y.backward(values({kRows, kWidth}, at::kBFloat16));
  EXPECT_EQ(
      row_of(run.work(), "tessera::mixed_norm_backward").bytes,
      5 * 2 * kElements + 2 * 4.0 * kWidth + 4.0 * kRows);
}

TEST(WorkBytes, OfFusedAttention) {
  DryRun run(c10::kCUDA);
  constexpr int64_t kBatch = 2;
  constexpr int64_t kHeads = 4;
  constexpr int64_t kLength = 512;
  constexpr int64_t kFeatures = 64;
  constexpr double kX = 2.0 * kBatch * kHeads * kLength * kFeatures;
  constexpr double kSums = 4.0 * kBatch * kHeads * kLength;
  constexpr double kState = 2 * 8; // of the generator
  const auto heads = [] {
    return values({kBatch, kHeads, kLength, kFeatures}, at::kBFloat16)
        .requires_grad_();
  };
  const at::Tensor q = heads();
  const at::Tensor k = heads();
  const at::Tensor v = heads();
  const at::Tensor y =
      torch::scaled_dot_product_attention(q, k, v, {}, 0, true);
  const OperatorWork forward =
      row_of(run.work(), "aten::_scaled_dot_product_flash_attention");
  EXPECT_EQ(forward.bytes, 4 * kX + kSums + kState);
  constexpr double kProduct =
      2.0 * kBatch * kHeads * kLength * kLength * kFeatures;
  EXPECT_EQ(forward.flops, 2 * kProduct);
  EXPECT_EQ(forward.masked_flops, kProduct);
  EXPECT_EQ(forward.dtype, at::kBFloat16);
  run.forget_work();
  y.backward(values({kBatch, kHeads, kLength, kFeatures}, at::kBFloat16));
  const OperatorWork backward =
      row_of(run.work(), "aten::_scaled_dot_product_flash_attention_backward");
  // Reads five and writes three; the output and its gradient once more; sums in
  // float32, twice as wide, in four passes.
  EXPECT_EQ(backward.bytes, (5 + 3 + 2 + 4 * 2) * kX + kSums + kState);
  EXPECT_EQ(backward.flops, 5 * kProduct);
  EXPECT_EQ(backward.repeated_flops, kProduct);
}

TEST(WorkBytes, OfAnUpdateAndOfPackedGradients) {
  DryRun run(c10::kCUDA);
  constexpr int64_t kCount = 1 << 20;
  const UpdateSegment update{
      {.master = values({kCount}),
       .grad = values({kCount}, at::kBFloat16),
       .moment = values({kCount}),
       .moment_sq = values({kCount}),
       .low_precision = values({kCount}, at::kBFloat16)},
      AdamWStep{}};
  update_segments_({&update, 1});
  const OperatorWork work = row_of(run.kernels(), "tessera::adamw_");
  // Master and moments both ways, the gradient in, the weights out.
  EXPECT_EQ(work.bytes, (2 * 3 * 4 + 2 + 2) * 1.0 * kCount);
  EXPECT_EQ(work.place, WorkPlace::kDevice);
  EXPECT_TRUE(run.work().empty());

  run.forget_work();
  const PackSegment pack{values({kCount}), values({kCount}, at::kBFloat16)};
  pack_segments_({&pack, 1}, 0.3);
  EXPECT_EQ(row_of(run.kernels(), "tessera::pack_").bytes, 6.0 * kCount);
  EXPECT_TRUE(run.work().empty()) << "its operators count as one kernel";
  run.forget_work();
  pack_segments_({&pack, 1}, 1, PackMode::kAdd);
  EXPECT_EQ(row_of(run.kernels(), "tessera::pack_").bytes, 10.0 * kCount);
}

TEST(WorkBytes, OfCopiesAreThoseBetweenHostAndDevice) {
  DryRun run(c10::kCUDA);
  constexpr int64_t kCount = 1 << 20;
  const auto on_host = [&] {
    auto block = std::make_shared<c10::DataPtr>(
        run.heap().allocate_uncounted(4 * kCount));
    return torch::from_blob(
        block->get(), {kCount}, [block](void*) {}, at::kFloat);
  };
  const at::Tensor host = on_host();
  const at::Tensor device = values({kCount});
  const auto one = [&](auto&& call) {
    run.forget_work();
    call();
    const auto work = run.work();
    EXPECT_EQ(work.size(), 1U);
    return work.front();
  };
  const OperatorWork down = one([&] { host.copy_(device); });
  EXPECT_EQ(down.place, WorkPlace::kToHost);
  EXPECT_EQ(down.bytes, 4.0 * kCount);
  const OperatorWork up = one([&] { device.copy_(host); });
  EXPECT_EQ(up.place, WorkPlace::kToDevice);
  EXPECT_EQ(up.bytes, 4.0 * kCount);
  const OperatorWork there = one([&] { host.mul_(2); });
  EXPECT_EQ(there.place, WorkPlace::kHost);
  EXPECT_EQ(there.bytes, 8.0 * kCount);
}

} // namespace tessera::runtime::work_bytes_test
