// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/step_metrics.h"

#include <nlohmann/json.hpp>

#include <limits>

namespace tessera::engine {

namespace {

/// Null stands for numbers that are not finite.
void read(const nlohmann::ordered_json& line, const char* key, double& value) {
  const auto found = line.find(key);
  if (found != line.end() && found->is_number()) {
    value = found->get<double>();
  }
}

void read(const nlohmann::ordered_json& line, const char* key, int64_t& value) {
  const auto found = line.find(key);
  if (found != line.end() && found->is_number_integer()) {
    value = found->get<int64_t>();
  }
}

/// The share of the peak, by what the peak is.
constexpr const char* kMfu = "mfu";
constexpr const char* kOfMeasuredPeak = "of_measured_peak";

/// Calls `field` with each key and the number that it stands for.
template <typename Metrics, typename Field>
void for_each_number(Metrics& metrics, const Field& field) {
  field("step", metrics.step);
  field("epoch", metrics.epoch);
  field("loss", metrics.loss);
  field("lr", metrics.lr);
  if (metrics.grad_norm) {
    field("grad_norm", *metrics.grad_norm);
  }
  field("tokens", metrics.tokens);
  field("non_padding_tokens", metrics.non_padding_tokens);
  field("tokens_per_s", metrics.tokens_per_s);
  field("memory_bytes", metrics.memory_bytes);
  field("step_s", metrics.step_seconds);
  if (metrics.work) {
    field("flops", metrics.work->flops);
    field("peak_flops_per_s", metrics.work->peak_flops_per_s);
  }
  if (metrics.split) {
    field("data_s", metrics.split->data);
    field("forward_s", metrics.split->forward);
    field("backward_s", metrics.split->backward);
    field("optimizer_s", metrics.split->optimizer);
    field("exposed_transfer_s", metrics.split->exposed_transfer);
  }
}

} // namespace

nlohmann::ordered_json to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  for_each_number(
      metrics, [&](const char* key, const auto& value) { line[key] = value; });
  line["padding_ratio"] = metrics.padding_ratio();
  if (metrics.split && metrics.split->forward == 0) {
    line.erase("forward_s"); // of a pipeline, which counts it as backward
  }
  if (metrics.work) {
    line[metrics.work->is_measured ? kOfMeasuredPeak : kMfu] =
        metrics.work->utilization(metrics.step_seconds);
  }
  for (const auto& [name, value] : metrics.heldout) {
    line[name] = value;
  }
  return line;
}

StepMetrics step_metrics_of(const nlohmann::ordered_json& line) {
  StepMetrics metrics;
  if (line.contains("flops")) {
    metrics.work.emplace().is_measured = line.contains(kOfMeasuredPeak);
  }
  if (line.contains("backward_s")) {
    metrics.split.emplace();
  }
  if (line.contains("grad_norm")) {
    metrics.grad_norm = std::numeric_limits<double>::infinity();
  }
  for_each_number(
      metrics, [&](const char* key, auto& value) { read(line, key, value); });
  for (const auto& [name, value] : line.items()) {
    if (name.starts_with(kHeldoutPrefix) && value.is_number()) {
      metrics.heldout.emplace_back(name, value.get<double>());
    }
  }
  return metrics;
}

} // namespace tessera::engine
