// SPDX-License-Identifier: Apache-2.0
// Predicted times are bytes or operations over rates, which can be checked by
// hand.
#include "tessera/planner/operator_times.h"

#include "support/expect_error.h"
#include "tessera/runtime/profile/device_peak.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <string>

namespace tessera::planner::operator_times_test {

namespace {

const DeviceRates kRates{
    .flops_16bit = 100,
    .flops_32bit = 50,
    .attention_16bit = 25,
    .device_memory = 10,
    .in_node = 4,
    .between_nodes = 1,
    .device_to_host = 2,
    .host_to_device = 1,
    .host_update = 7};

StepMemoryPlan some_plan() {
  StepMemoryPlan plan;
  plan.operators = {
      {.module = "a",
       .name = "aten::mm",
       .calls = 2,
       .flops = 400,
       .bytes = 10,
       .dtype = at::kBFloat16},
      {.module = "b",
       .name = "aten::mm",
       .calls = 1,
       .flops = 200,
       .bytes = 1,
       .dtype = at::kBFloat16},
      // Small enough that its bytes take longer: a row of its own.
      {.module = "c",
       .name = "aten::mm",
       .calls = 1,
       .flops = 10,
       .bytes = 5,
       .dtype = at::kBFloat16},
      {.module = "a",
       .name = "aten::mm",
       .in_backward = true,
       .calls = 1,
       .flops = 400,
       .bytes = 10,
       .repeated_flops = 400,
       .dtype = at::kFloat},
      {.module = "a",
       .name = "aten::_scaled_dot_product_flash_attention",
       .calls = 1,
       .flops = 200,
       .bytes = 1,
       .masked_flops = 100,
       .dtype = at::kBFloat16},
      {.name = "aten::copy_",
       .calls = 1,
       .bytes = 4,
       .place = WorkPlace::kToHost},
      {.name = "aten::copy_",
       .calls = 1,
       .bytes = 3,
       .place = WorkPlace::kToDevice}};
  plan.kernels = {
      {.name = "tessera::adamw_", .calls = 1, .bytes = 20},
      {.name = "tessera::adamw_",
       .calls = 1,
       .bytes = 14,
       .place = WorkPlace::kHost}};
  plan.collectives = {// 7/8 of the bytes leave a rank.
                      {"engine shards", "all_gather", 8, 3, 16},
                      {"alone", "all_reduce", 1, 1, 1000}};
  return plan;
}

} // namespace

TEST(OperatorTimes, AreOperationsOrBytesOverRates) {
  const StepPrediction found = predict_step(some_plan(), "h100", kRates);
  struct Expected {
    const char* name;
    bool in_backward;
    int64_t calls;
    double seconds;
    OperatorBound bound;
  };
  const std::vector<Expected> expected{
      {"aten::mm", true, 1, 8, OperatorBound::kProducts},
      {"aten::mm", false, 3, 6, OperatorBound::kProducts},
      {"all_gather, engine shards", false, 3, 3.5, OperatorBound::kLinks},
      {"aten::copy_", false, 1, 3, OperatorBound::kToDevice},
      {"aten::copy_", false, 1, 2, OperatorBound::kToHost},
      {"tessera::adamw_", false, 1, 2, OperatorBound::kMemory},
      {"tessera::adamw_", false, 1, 2, OperatorBound::kHostMemory},
      {"aten::_scaled_dot_product_flash_attention",
       false,
       1,
       4,
       OperatorBound::kProducts},
      {"aten::mm", false, 1, 0.5, OperatorBound::kMemory}};
  ASSERT_EQ(found.operators.size(), expected.size());
  for (const Expected& row : expected) {
    const auto same = std::find_if(
        found.operators.begin(),
        found.operators.end(),
        [&](const OperatorTime& time) {
          return time.name == row.name && time.bound == row.bound &&
                 time.in_backward == row.in_backward;
        });
    ASSERT_NE(same, found.operators.end()) << row.name;
    EXPECT_EQ(same->calls, row.calls) << row.name;
    EXPECT_DOUBLE_EQ(same->seconds, row.seconds) << row.name;
  }
  for (size_t i = 1; i < found.operators.size(); ++i) {
    EXPECT_GE(found.operators[i - 1].seconds, found.operators[i].seconds);
  }
  EXPECT_DOUBLE_EQ(found.device_s, 8 + 6 + 2 + 4 + 0.5);
  EXPECT_DOUBLE_EQ(found.links_s, 3.5);
  EXPECT_DOUBLE_EQ(found.to_host_s, 2);
  EXPECT_DOUBLE_EQ(found.to_device_s, 3);
  EXPECT_DOUBLE_EQ(found.host_s, 2);
  EXPECT_DOUBLE_EQ(found.seconds(), 20.5);
  EXPECT_DOUBLE_EQ(found.seconds_in_turn(), 31);
  // Without what is repeated, with what is masked, of the 16 bits' peak.
  EXPECT_DOUBLE_EQ(found.model_flops, 400 + 200 + 10 + 200);
  EXPECT_DOUBLE_EQ(*found.mfu(), 810 / 20.5 / 989.4e12);
}

TEST(OperatorTimes, ArePrintedAndWritten) {
  StepMemoryPlan plan = some_plan();
  for (OperatorWork& work : plan.operators) {
    work.flops *= 1e12;
    work.masked_flops *= 1e12;
    work.repeated_flops *= 1e12;
    work.bytes *= 1e10;
  }
  DeviceRates rates = kRates;
  rates.flops_16bit = 100e12;
  rates.flops_32bit = 50e12;
  rates.attention_16bit = 25e12;
  rates.device_memory = 10e10;
  rates.device_to_host = 2e10;
  rates.host_to_device = 1e10;
  const StepPrediction found = predict_step(plan, "h100", rates);
  const std::string table = prediction_table(found);
  EXPECT_NE(
      table.find(
          "mm                                 bwd       1   400000  100.00  "
          "8000.00 products\n"),
      std::string::npos)
      << table;
  const auto json = prediction_json(found);
  EXPECT_EQ(json["operators"].size(), found.operators.size());
  double seconds = 0;
  for (const auto& row : json["operators"]) {
    seconds += row["seconds"].get<double>();
  }
  EXPECT_NEAR(seconds, json["step_in_turn_s"].get<double>(), 1e-9 * seconds);
  EXPECT_EQ(json["mfu"], *found.mfu());
}

TEST(OperatorTimes, HaveTheRatesOfDataSheets) {
  const DeviceRates steps = known_rates("h200");
  const DeviceRates kernels = known_rates("h200", RateUse::kKernels);
  EXPECT_DOUBLE_EQ(steps.flops_16bit, 0.5 * 989.4e12);
  EXPECT_DOUBLE_EQ(kernels.flops_16bit, 0.6875 * 989.4e12); // 680
  EXPECT_DOUBLE_EQ(steps.attention_16bit, steps.flops_16bit);
  EXPECT_DOUBLE_EQ(kernels.attention_16bit, 0.45 * 989.4e12); // 445
  EXPECT_DOUBLE_EQ(steps.device_memory, 0.8 * 4.8e12);
  EXPECT_DOUBLE_EQ(kernels.device_memory, 0.9 * 4.8e12);
  EXPECT_EQ(steps.in_node, kernels.in_node);
  EXPECT_EQ(
      known_rates("cpu").flops_16bit,
      known_rates("cpu", RateUse::kKernels).flops_16bit);
  EXPECT_FALSE(peak_flops("cpu", at::kFloat).has_value());
  for (const char* name :
       {"v100",
        "a100",
        "h100",
        "h200",
        "rtx2080ti",
        "rtx3090",
        "rtx4090",
        "cpu"}) {
    const DeviceRates rates = known_rates(name, RateUse::kKernels);
    EXPECT_GT(rates.flops_16bit, 0) << name;
    EXPECT_GT(rates.attention_16bit, 0) << name;
    EXPECT_GT(rates.device_memory, 0) << name;
    EXPECT_GT(rates.host_update, 0) << name;
  }
  expect_error([] { known_rates("h300"); }, {"h300", "h100, h200"});
}

TEST(OperatorTimes, KnowTheRatesOfADeviceByItsDriversName) {
  EXPECT_EQ(rates_name("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(rates_name("NVIDIA H200"), "h200");
  EXPECT_EQ(rates_name("NVIDIA A100-SXM4-40GB"), "a100");
  EXPECT_EQ(rates_name("NVIDIA GeForce RTX 3090"), "rtx3090");
  // Of other rates, or of none that are known.
  for (const char* other :
       {"NVIDIA H100 PCIe",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA GH200 480GB",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA L4",
        "Tesla K80",
        ""}) {
    EXPECT_FALSE(rates_name(other).has_value()) << other;
  }
}

TEST(OperatorTimes, OfAttentionInFloat32AreThoseOfProducts) {
  StepMemoryPlan plan;
  plan.operators = {
      {.module = "a",
       .name = "aten::_scaled_dot_product_efficient_attention_backward",
       .calls = 1,
       .flops = 100,
       .dtype = at::kFloat}};
  EXPECT_DOUBLE_EQ(
      predict_step(plan, "h100", kRates).device_s, 100 / kRates.flops_32bit);
  plan.operators[0].dtype = at::kHalf;
  EXPECT_DOUBLE_EQ(
      predict_step(plan, "h100", kRates).device_s,
      100 / kRates.attention_16bit);
}

TEST(OperatorTimes, OfRoundedProductsHaveTheirRate) {
  DeviceRates rates = kRates;
  rates.flops_rounded = 200;
  const OperatorWork attention{
      .name = "aten::_scaled_dot_product_flash_attention_for_cpu"};
  for (const char* name : {"aten::mm", "aten::addmm", "aten::addmm_"}) {
    OperatorWork product{.name = name, .dtype = at::kFloat};
    rates.rounds_products = false;
    EXPECT_EQ(flops_rate(product, false, rates), 50) << name;
    rates.rounds_products = true;
    EXPECT_EQ(flops_rate(product, false, rates), 200) << name;
    product.dtype = at::kBFloat16;
    EXPECT_EQ(flops_rate(product, true, rates), 100) << name;
  }
  EXPECT_EQ(flops_rate(attention, false, rates), 50);
  EXPECT_EQ(assumed_rate(rates), std::nullopt);
  rates.flops_rounded = 0;
  EXPECT_EQ(flops_rate({.name = "aten::mm"}, false, rates), 50);
  EXPECT_NE(assumed_rate(rates), std::nullopt);
  rates.rounds_products = false;
  EXPECT_EQ(assumed_rate(rates), std::nullopt);
}

/// A linear layer under AdamW: what a step is made of.
TEST(OperatorTimes, OfAPlannedStepHaveItsUpdate) {
  constexpr int64_t kWidth = 512;
  torch::nn::Sequential net(torch::nn::Linear(kWidth, kWidth));
  const at::Tensor x = torch::empty({64, kWidth}, at::kBFloat16);
  EngineOptions options;
  options.log_memory = false;
  options.precision.parameters = at::kBFloat16;
  PlannedJob job;
  job.device = c10::kCUDA;
  const auto step_of = [&](const EngineOptions& own) {
    return predict_step(
        plan(
            *net,
            own,
            [&] { return net->forward(x).to(at::kFloat).sum(); },
            job),
        "h100",
        kRates);
  };
  const auto row_of = [](const StepPrediction& step,
                         const std::string& name,
                         OperatorBound bound) {
    OperatorTime found;
    for (const OperatorTime& row : step.operators) {
      found = row.name == name && row.bound == bound ? row : found;
    }
    return found;
  };
  constexpr double kCount = kWidth * kWidth + kWidth;
  const StepPrediction resident = step_of(options);
  const OperatorTime update =
      row_of(resident, "tessera::adamw_", OperatorBound::kMemory);
  EXPECT_GE(update.calls, 1);
  // Master and moments both ways, weights out, the gradient in float32 in.
  EXPECT_NEAR(update.bytes, kCount * (6 * 4 + 2 + 4), 0.02 * update.bytes);
  EXPECT_EQ(resident.host_s, 0);
  EXPECT_GT(
      row_of(resident, "tessera::pack_", OperatorBound::kMemory).calls, 0);

  // The same on the host: beside it, gradients go there and weights come back.
  EngineOptions host = options;
  host.placement.optimizer = MemoryTier::kHost;
  host.memory.host_bytes = int64_t{1} << 30;
  const StepPrediction offloaded = step_of(host);
  const OperatorTime there =
      row_of(offloaded, "tessera::adamw_", OperatorBound::kHostMemory);
  EXPECT_EQ(
      row_of(offloaded, "tessera::adamw_", OperatorBound::kMemory).calls, 0);
  EXPECT_GE(there.bytes, kCount * 6 * 4);
  EXPECT_NEAR(
      offloaded.to_host_s * kRates.device_to_host,
      4 * kCount,
      0.02 * 4 * kCount);
  EXPECT_NEAR(
      offloaded.to_device_s * kRates.host_to_device,
      2 * kCount,
      0.02 * 2 * kCount);
}

} // namespace tessera::planner::operator_times_test
