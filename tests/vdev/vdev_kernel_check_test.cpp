// SPDX-License-Identifier: Apache-2.0
// Kernels that are wrong on purpose are found at their first use, and
// LibTorch's operators train in their place.
#include "support/motion.h"
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_kernels.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/pack_segments.h"
#include "tessera/runtime/kernels/softmax_loss.h"
#include "tessera/sharding/lazy/move_module.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace tessera::tests::vdev::vdev_kernel_check_test {

namespace {

using Order = Policy::Order;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kReplaced = "LibTorch's operators take its place";

/// Copies of the runs that end an element early.
template <typename Shard>
auto shortened(std::span<const Shard> runs) {
  std::vector<Shard> result(runs.begin(), runs.end());
  for (Shard& run : result) {
    --run.numel;
  }
  return result;
}

void short_update(const runtime::UpdateShards& shards) {
  std::visit(
      [](auto runs) {
        const auto local = shortened(runs);
        vdev_kernels().update(decltype(runs)(local));
      },
      shards);
}

void short_moments(const runtime::LambShards& shards, double* sums) {
  std::visit(
      [&](auto runs) {
        const auto local = shortened(runs);
        vdev_kernels().lamb_moments(decltype(runs)(local), sums);
      },
      shards);
}

void short_pack(
    std::span<const runtime::PackShard> runs,
    runtime::ElementType target_type,
    double factor,
    runtime::PackMode mode) {
  vdev_kernels().pack(shortened(runs), target_type, factor, mode);
}

void pack_that_fails(
    std::span<const runtime::PackShard> /*runs*/,
    runtime::ElementType /*target_type*/,
    double /*factor*/,
    runtime::PackMode /*mode*/) {
  TESSERA_CHECK(false, "no kernel image is available");
}

void doubled_sums(const runtime::BlockArrays& arrays) {
  runtime::BlockArrays local = arrays;
  local.factor *= 2;
  vdev_kernels().blocks(local);
}

runtime::NormResults norm_with_another_eps(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  return vdev_kernels().norm(
      x, features, groups, spatial, weight, bias, eps + 1, centered);
}

runtime::NormResults doubled_norm_gradients(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> wanted) {
  return vdev_kernels().norm_backward(
      gradient * 2,
      x,
      features,
      groups,
      spatial,
      mean,
      rstd,
      weight,
      centered,
      wanted);
}

/// Training that uses a kernel, and that kernel broken.
struct Case {
  const char* kernel; ///< as the warning names it
  runtime::DeviceKernels broken;
  EngineOptions options;
  /// Of the motion, where sums are in another order; 0: equal bits.
  double fraction = 0;
  int ranks = 1;
};

EngineOptions with_rule(const UpdateRule& rule) {
  EngineOptions options;
  options.optimizer.rule = rule;
  return options;
}

EngineOptions in_bfloat16() {
  EngineOptions options = with_rule(SgdOptions{});
  options.precision.parameters = at::kBFloat16;
  return options;
}

EngineOptions with_compression(Compression format) {
  EngineOptions options = with_rule(SgdOptions{});
  options.sharding.communication = {
      .gather = Compression::kNone, .reduce = format, .block_elements = 16};
  return options;
}

std::vector<Case> cases() {
  return {
      {.kernel = "adamw_ of float32",
       .broken = {.update = &short_update},
       .options = with_rule(AdamWOptions{})},
      {.kernel = "sgd_ of float32",
       .broken = {.update = &short_update},
       .options = with_rule(SgdOptions{.momentum = 0.9})},
      {.kernel = "lion_ of float32",
       .broken = {.update = &short_update},
       .options = with_rule(LionOptions{})},
      {.kernel = "adan_ of float32",
       .broken = {.update = &short_update},
       .options = with_rule(AdanOptions{})},
      {.kernel = "lamb_weights_ of float32",
       .broken = {.update = &short_update},
       .options = with_rule(LambOptions{}),
       .fraction = 1e-5},
      {.kernel = "lamb_moments_ of float32",
       .broken = {.lamb_moments = &short_moments},
       .options = with_rule(LambOptions{}),
       .fraction = 1e-5},
      {.kernel = "pack_segments_ to float32",
       .broken = {.pack = &short_pack},
       .options = {},
       .ranks = 2},
      {.kernel = "block format: int8 for float32",
       .broken = {.blocks = &doubled_sums},
       .options = with_compression(Compression::kInt8),
       .ranks = 2},
      {.kernel = "block format: fp8 for float32",
       .broken = {.blocks = &doubled_sums},
       .options = with_compression(Compression::kFp8),
       .ranks = 2},
      // Activations may round to a neighbor.
      {.kernel = "mixed_norm of bfloat16",
       .broken = {.norm = &norm_with_another_eps},
       .options = in_bfloat16(),
       .fraction = 2e-2},
      {.kernel = "mixed_norm of bfloat16",
       .broken = {.norm_backward = &doubled_norm_gradients},
       .options = in_bfloat16(),
       .fraction = 2e-2},
  };
}

using Values = std::map<std::string, at::Tensor>;

/// The parameters before the first and after the last step.
struct Trained {
  Values before;
  Values after;
};

Values values_of(Engine& engine) {
  Values values;
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        values[name] = value.detach().cpu().to(at::kFloat).clone();
      });
  return values;
}

Trained train(World& world, at::Device device, EngineOptions options) {
  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Linear(7, 16),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
      torch::nn::Tanh(),
      torch::nn::Linear(16, 3));
  move_module(*net, device);
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 0;
  options.optimizer.lr = 1e-2;
  auto engine = wrap(net, options);
  Trained result{values_of(engine), {}};
  const at::ScalarType dtype =
      options.precision.parameters.value_or(at::kFloat);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(100 * world.rank() + step);
    const auto x = torch::randn({5, 7}).to(dtype).to(device);
    engine.backward(net->forward(x).square().mean());
    engine.step();
  }
  result.after = values_of(engine);
  return result;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Calls body and returns what it wrote to standard error.
std::string output_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

/// The largest; infinite where memory that was not written shows as NaN.
double distance(const Trained& a, const Trained& b) {
  double largest = 0;
  for (const auto& [name, value] : a.after) {
    const double local = (value - b.after.at(name)).abs().max().item<double>();
    largest = std::max(largest, std::isnan(local) ? HUGE_VAL : local);
  }
  return largest;
}

void expect_as(const Trained& found, const Trained& expected, double fraction) {
  ASSERT_EQ(found.after.size(), expected.after.size());
  for (const auto& [name, value] : expected.after) {
    if (fraction == 0) {
      EXPECT_TRUE(torch::equal(found.after.at(name), value)) << name;
    } else {
      expect_close_by_motion(
          expected.before.at(name),
          value,
          found.after.at(name),
          fraction,
          name);
    }
  }
}

/// With the check as in production; these tests break kernels or look at what
/// it does.
void run_checked(
    int ranks,
    const Policy& policy,
    const std::function<void(World&)>& body,
    const char* wanted = "1") {
  run_ranks_on_vdev(ranks, policy, [&](World& world) {
    ::setenv("TESSERA_CHECK_KERNELS", wanted, /*overwrite=*/1);
    body(world);
  });
}

/// Adds one tensor to another on the current stream.
void add_by_pack(const at::Tensor& target, const at::Tensor& source) {
  const runtime::PackSegment run{target, source};
  runtime::pack_segments_({&run, 1}, 1, runtime::PackMode::kAdd);
}

class KernelCheck : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(KernelCheck, OperatorsTrainInPlaceOfABrokenKernel) {
  for (const Case& broken : cases()) {
    SCOPED_TRACE(broken.kernel);
    run_checked(broken.ranks, GetParam(), [&](World& world) {
      runtime::register_device_kernels(broken.broken);
      const Trained expected = train(world, at::kCPU, broken.options);
      Trained found;
      Trained again;
      const std::string output = output_of([&] {
        found = train(world, world.device(), broken.options);
        again = train(world, world.device(), broken.options);
      });
      expect_as(found, expected, broken.fraction);
      expect_as(again, expected, broken.fraction);
      EXPECT_EQ(count_of(output, kReplaced), 1) << output;
      EXPECT_THAT(
          output,
          HasSubstr(
              std::string("the kernel ") + broken.kernel + " on " +
              world.device().str() +
              " does not compute what LibTorch's operators do: "));
      EXPECT_THAT(output, HasSubstr(" differ by up to "));
      EXPECT_THAT(output, HasSubstr(", at element "));
    });
  }
}

TEST_P(KernelCheck, WithoutItABrokenKernelServes) {
  for (const Case& broken : cases()) {
    SCOPED_TRACE(broken.kernel);
    run_checked(
        broken.ranks,
        GetParam(),
        [&](World& world) {
          runtime::register_device_kernels(broken.broken);
          const Trained expected = train(world, at::kCPU, broken.options);
          const std::string output = output_of([&] {
            EXPECT_GT(
                distance(
                    train(world, world.device(), broken.options), expected),
                1e-5);
          });
          EXPECT_THAT(output, Not(HasSubstr("the kernel ")));
        },
        "0");
  }
}

TEST_P(KernelCheck, KernelsThatAreRightServeWithoutAWarning) {
  for (const Case& right : cases()) {
    SCOPED_TRACE(right.kernel);
    run_checked(right.ranks, GetParam(), [&](World& world) {
      const Trained expected = train(world, at::kCPU, right.options);
      const std::string output = output_of([&] {
        expect_as(
            train(world, world.device(), right.options),
            expected,
            right.fraction);
      });
      EXPECT_THAT(output, Not(HasSubstr("the kernel ")));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    KernelCheck,
    ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}})),
    [](const auto& which) { return which.param.name(); });

TEST(KernelCheckAlone, AKernelThatCannotBeLaunchedIsReplaced) {
  run_checked(1, {Order::kLazy}, [](World& world) {
    runtime::register_device_kernels({.pack = &pack_that_fails});
    const at::Tensor target = torch::ones({5}, world.device());
    const std::string output = output_of(
        [&] { add_by_pack(target, torch::ones({5}, world.device())); });
    EXPECT_THAT(
        output,
        HasSubstr(
            "the kernel pack_segments_ to float32 on " + world.device().str() +
            " has failed on a small problem: "));
    EXPECT_THAT(output, HasSubstr("no kernel image is available"));
    EXPECT_TRUE(torch::equal(target.cpu(), torch::full({5}, 2.0)));
  });
}

TEST(KernelCheckAlone, ALossKernelThatIsRefusedLeavesTheLossToOperators) {
  struct Broken {
    runtime::SoftmaxLossLaunch* launch;
    const char* fault; ///< as the warning names it
  };
  const std::array<Broken, 2> all = {
      Broken{
          [](const runtime::SoftmaxLossRows&) {},
          "does not compute what LibTorch's operators do: "},
      Broken{
          [](const runtime::SoftmaxLossRows&) {
            TESSERA_CHECK(false, "no kernel image is available");
          },
          "has failed on a small problem: "}};
  for (const Broken& broken : all) {
    run_checked(1, {Order::kLazy}, [&](World& world) {
      runtime::register_softmax_loss(broken.launch);
      torch::manual_seed(3);
      const at::Tensor logits = torch::randn({3, 7});
      const at::Tensor targets = torch::tensor({2, -100, 6});
      const at::Tensor scale = torch::full({}, 0.5);
      const auto run = [&](const auto& loss, at::Device device) {
        const at::Tensor x = logits.to(device).clone();
        const at::Tensor losses = torch::zeros({3}, device);
        loss(x, losses, targets.to(device), scale.to(device));
        return std::vector{x.cpu(), losses.cpu()};
      };
      const auto expected = run(
          [](const at::Tensor& x,
             const at::Tensor& losses,
             const at::Tensor& to,
             const at::Tensor& by) {
            runtime::softmax_loss_by_operators(x, losses, to, by, 7, {}, true);
          },
          at::kCPU);
      const std::string output = output_of([&] {
        for (int i = 0; i < 2; ++i) {
          const auto found = run(
              [](const at::Tensor& x,
                 const at::Tensor& losses,
                 const at::Tensor& to,
                 const at::Tensor& by) {
                runtime::softmax_loss_cuda(
                    x, losses, to, by, {}, 7, -100, 0, 0, true);
              },
              world.device());
          EXPECT_TRUE(found[0].allclose(expected[0], 1e-6, 1e-6));
          EXPECT_TRUE(found[1].allclose(expected[1], 1e-6, 1e-6));
        }
      });
      EXPECT_EQ(count_of(output, "tessera: "), 1) << output;
      EXPECT_EQ(count_of(output, kReplaced), 1) << output;
      EXPECT_THAT(
          output,
          HasSubstr(
              "the kernel softmax_loss_ of float32 on " + world.device().str() +
              " " + broken.fault));
    });
  }
}

TEST(KernelCheckAlone, EachTypeOfTargetIsCheckedApart) {
  run_checked(1, {Order::kLazy}, [](World& world) {
    runtime::register_device_kernels({.pack = &short_pack});
    const auto add = [&](at::ScalarType dtype) {
      const auto options = at::TensorOptions(world.device()).dtype(dtype);
      const at::Tensor target = torch::ones({5}, options);
      add_by_pack(target, torch::ones({5}, options));
      EXPECT_TRUE(torch::equal(target.cpu(), torch::full({5}, 2.0, dtype)));
    };
    const std::string output = output_of([&] {
      for (int i = 0; i < 2; ++i) {
        add(at::kFloat);
        add(at::kBFloat16);
      }
    });
    EXPECT_EQ(count_of(output, "the kernel pack_segments_ to float32 "), 1);
    EXPECT_EQ(count_of(output, "the kernel pack_segments_ to bfloat16 "), 1);
    EXPECT_EQ(count_of(output, kReplaced), 2);
  });
}

TEST(KernelCheckAlone, LeavesStreamsGeneratorsAndMemoryAsTheyWere) {
  run_checked(1, {Order::kLazy}, [](World& world) {
    const at::Device device = world.device();
    auto* allocator =
        dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    ASSERT_NE(allocator, nullptr);
    const auto allocated = [&] {
      return allocator->getDeviceStats(device.index())
          .allocated_bytes[0]
          .current;
    };
    const auto generators = [&] {
      return std::vector<at::Tensor>{
          at::globalContext().defaultGenerator(at::kCPU).get_state(),
          at::globalContext().defaultGenerator(device).get_state()};
    };
    const at::Tensor target = torch::ones({5}, device);
    const at::Tensor source = torch::ones({5}, device);
    const auto states = generators();
    const int64_t bytes = allocated();
    const c10::Stream stream = stream_of(target);
    ASSERT_FALSE(Runtime::instance().is_idle(stream));
    const int64_t commands = Runtime::instance().counters().commands;
    add_by_pack(target, source);
    // It has taken place,
    EXPECT_GT(Runtime::instance().counters().commands, commands + 10);
    // and has waited for nothing of this stream.
    EXPECT_FALSE(Runtime::instance().is_idle(stream));
    EXPECT_EQ(stream_of(target), stream);
    EXPECT_EQ(allocated(), bytes);
    const auto after = generators();
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(torch::equal(after[i], states[i])) << i;
    }
    EXPECT_TRUE(torch::equal(target.cpu(), torch::full({5}, 2.0)));
  });
}

TEST(KernelCheckAlone, WaitsForTheEndOfACapture) {
  run_checked(1, {Order::kLazy}, [](World& world) {
    static bool captures = true;
    runtime::register_device_kernels(
        {.pack = &short_pack, .is_capturing = [] { return captures; }});
    const at::Tensor target = torch::zeros({5}, world.device());
    const at::Tensor source = torch::ones({5}, world.device());
    const std::string during = output_of([&] { add_by_pack(target, source); });
    EXPECT_EQ(during, "");
    captures = false;
    const std::string after = output_of([&] { add_by_pack(target, source); });
    EXPECT_EQ(count_of(after, kReplaced), 1);
    EXPECT_TRUE(
        torch::equal(target.cpu(), torch::tensor({2.F, 2.F, 2.F, 2.F, 1.F})));
  });
}

} // namespace tessera::tests::vdev::vdev_kernel_check_test
