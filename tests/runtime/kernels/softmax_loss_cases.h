// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cases of softmax_loss_() against LibTorch's cross_entropy in float64.

#include "tessera/runtime/kernels/softmax_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace tessera::runtime::softmax_loss_cases {

/// softmax_loss_() by the kernel that is tested.
using LossKernel = std::function<void(
    const at::Tensor& logits,
    const at::Tensor& losses,
    const at::Tensor& targets,
    const at::Tensor& scale,
    int64_t classes,
    const SoftmaxLossOptions& options,
    bool gradients)>;

struct Case {
  at::ScalarType dtype;
  int64_t rows;
  int64_t classes;
  int64_t columns; ///< of memory
  double smoothing = 0;
  double z_loss = 0;
  bool has_weights = false;
  double spread = 1; ///< of the logits

  std::string text() const {
    return c10::str(
        dtype,
        " [",
        rows,
        ", ",
        classes,
        " of ",
        columns,
        "], ",
        smoothing,
        " ",
        z_loss,
        has_weights ? " weights " : " ",
        spread);
  }
};

/// Odd sizes, one class, rows without a whole vector, and packs with a rest.
inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, classes, columns] :
         {std::tuple<int64_t, int64_t, int64_t>{3, 1, 1},
          {5, 7, 7},
          {4, 33, 40},
          {6, 97, 97},
          {3, 5003, 5008},
          {2, 2056, 2056},
          {0, 40, 40}}) {
      cases.push_back({dtype, rows, classes, columns});
      cases.push_back({dtype, rows, classes, columns, 0.1});
      cases.push_back({dtype, rows, classes, columns, 0, 1e-2, true});
      cases.push_back({dtype, rows, classes, columns, 0.2, 1e-3, true});
      cases.push_back({dtype, rows, classes, columns, 0, 0, false, 40});
    }
  }
  return cases;
}

/// [rows] in float64, differentiable, 0 where ignored.
inline at::Tensor exact_losses(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const SoftmaxLossOptions& options) {
  const at::Tensor weights = options.class_weights.defined()
                                 ? options.class_weights.to(at::kDouble)
                                 : at::Tensor();
  const at::Tensor losses = at::cross_entropy_loss(
      logits,
      targets,
      weights,
      at::Reduction::None,
      options.ignore_index,
      options.label_smoothing);
  const at::Tensor counted = targets.ne(options.ignore_index);
  at::Tensor penalty = at::logsumexp(logits, 1).square() * options.z_loss;
  if (weights.defined()) {
    penalty = penalty * weights.index_select(0, targets.mul(counted));
  }
  return losses + at::where(counted, penalty, at::zeros_like(losses));
}

/// Elements of 16 bits within one rounding, all within the errors of float32.
inline bool is_close(
    const at::Tensor& found,
    const at::Tensor& exact,
    double tolerance) {
  const double unit = found.scalar_type() == at::kHalf       ? 0x1p-11
                      : found.scalar_type() == at::kBFloat16 ? 0x1p-8
                                                             : 0;
  // The smallest steps of float16.
  const double least = found.scalar_type() == at::kHalf ? 0x1p-25 : 1e-30;
  return at::allclose(
      found.to(at::kDouble), exact, unit + tolerance, tolerance * 1e-2 + least);
}

inline void check_case(
    const Case& which,
    const LossKernel& run,
    at::Device device = at::kCPU) {
  SCOPED_TRACE(which.text());
  torch::manual_seed(4);
  // Not zero: what a kernel leaves would be seen.
  const at::Tensor memory =
      (torch::randn({which.rows, which.columns}) * which.spread)
          .to(which.dtype);
  const at::Tensor targets = torch::randint(which.classes, {which.rows});
  SoftmaxLossOptions options{
      .ignore_index = -7,
      .label_smoothing = which.smoothing,
      .z_loss = which.z_loss};
  if (which.has_weights) {
    options.class_weights = torch::rand({which.classes}) + 0.5;
  }
  if (which.rows > 0) {
    targets[which.rows / 2] = options.ignore_index;
    targets[0] = which.classes - 1;
  }
  const at::Tensor wide = memory.narrow(1, 0, which.classes)
                              .to(at::kDouble)
                              .detach()
                              .requires_grad_();
  const at::Tensor exact = exact_losses(wide, targets, options);
  if (which.rows > 0) {
    (exact.sum() * 0.25).backward();
  }
  SoftmaxLossOptions local = options;
  if (which.has_weights) {
    local.class_weights = options.class_weights.to(device);
  }
  const at::Tensor scale =
      at::full({}, 0.25, at::TensorOptions(device).dtype(at::kFloat));
  for (const bool gradients : {false, true}) {
    const at::Tensor logits = memory.to(device).clone();
    const at::Tensor losses = at::full({which.rows}, NAN, scale.options());
    run(logits,
        losses,
        targets.to(device),
        scale,
        which.classes,
        local,
        gradients);
    // Losses of one class are 0 but for rounding.
    EXPECT_TRUE(
        at::allclose(losses.cpu().to(at::kDouble), exact.detach(), 1e-5, 1e-6))
        << losses << exact;
    if (!gradients) {
      EXPECT_TRUE(torch::equal(logits.cpu(), memory));
    } else if (which.rows > 0) {
      const at::Tensor found = logits.cpu();
      EXPECT_TRUE(
          is_close(found.narrow(1, 0, which.classes), wide.grad(), 1e-5));
      EXPECT_EQ(
          found.narrow(1, which.classes, which.columns - which.classes)
              .count_nonzero()
              .item<int64_t>(),
          0);
    }
  }
}

/// Large logits, logits of -infinity, rows that are not finite, ignored and
/// not, and a target that is no class.
inline void check_extremes(
    at::ScalarType dtype,
    const LossKernel& run,
    at::Device device = at::kCPU) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kClasses = 43;
  const at::Tensor logits = torch::zeros({8, kClasses});
  torch::manual_seed(5);
  logits.copy_(torch::randn(logits.sizes()));
  logits[0] += 6e4;
  logits[1] -= 6e4;
  logits[2].narrow(0, 3, 20).fill_(-kInfinity);
  logits[3][40] = -kInfinity; // the target
  logits[4].fill_(-kInfinity);
  logits[5][7] = kInfinity;
  logits[6].fill_(NAN); // ignored
  const at::Tensor targets = torch::tensor({1, 2, 30, 40, 5, 6, -100, 99});
  const at::Tensor memory = logits.to(dtype);
  const at::Tensor wide = memory.to(at::kDouble).requires_grad_();
  const at::Tensor exact = at::cross_entropy_loss(
                               wide.narrow(0, 0, 7),
                               targets.narrow(0, 0, 7),
                               {},
                               at::Reduction::None)
                               .detach();
  const at::Tensor probabilities = at::softmax(wide, 1).detach();
  const at::Tensor found = memory.to(device).clone();
  const at::Tensor losses =
      at::full({8}, -1, at::TensorOptions(device).dtype(at::kFloat));
  run(found,
      losses,
      targets.to(device),
      at::ones({}, losses.options()),
      kClasses,
      {},
      true);
  const at::Tensor local_losses = losses.cpu();
  const at::Tensor gradient = found.cpu();
  for (const int64_t row : {0, 1, 2}) {
    EXPECT_TRUE(is_close(local_losses[row], exact[row], 1e-5)) << row;
  }
  EXPECT_EQ(local_losses[3].item<float>(), kInfinity);
  for (const int64_t row : {0, 1, 2, 3}) {
    at::Tensor expected = probabilities[row].clone();
    expected[targets[row]] -= 1;
    EXPECT_TRUE(is_close(gradient[row], expected, 1e-5)) << row;
  }
  for (const int64_t row : {4, 5, 7}) {
    EXPECT_TRUE(local_losses[row].isnan().item<bool>()) << row;
  }
  for (const int64_t row : {4, 5}) {
    EXPECT_TRUE(gradient[row].isnan().any().item<bool>()) << row;
  }
  EXPECT_EQ(local_losses[6].item<float>(), 0);
  EXPECT_EQ(gradient[6].count_nonzero().item<int64_t>(), 0);
}

} // namespace tessera::runtime::softmax_loss_cases
