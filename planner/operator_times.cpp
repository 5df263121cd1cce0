// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/operator_times.h"

#include "tessera/runtime/core/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace tessera::planner {

namespace {

bool is_16bit(c10::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// Whether the factors of its products are rounded. Of small ones they are not,
/// whose time counts for nothing.
bool is_rounded(const OperatorWork& work, const DeviceRates& rates) {
  return rates.rounds_products && work.dtype == at::kFloat &&
         is_matrix_product(work.name);
}

/// Where time passes that can overlap with that of others.
double& sum_of(StepPrediction& prediction, OperatorBound bound) {
  switch (bound) {
    case OperatorBound::kProducts:
    case OperatorBound::kMemory:
      return prediction.device_s;
    case OperatorBound::kHostMemory:
      return prediction.host_s;
    case OperatorBound::kToHost:
      return prediction.to_host_s;
    case OperatorBound::kToDevice:
      return prediction.to_device_s;
    case OperatorBound::kLinks:
      return prediction.links_s;
  }
  return prediction.device_s;
}

/// Seconds, and what they are of.
std::pair<double, OperatorBound> time_of(
    const OperatorWork& work,
    bool is_kernel,
    const DeviceRates& rates) {
  switch (work.place) {
    case WorkPlace::kHost:
      return {work.bytes / rates.host_update, OperatorBound::kHostMemory};
    case WorkPlace::kToHost:
      return {work.bytes / rates.device_to_host, OperatorBound::kToHost};
    case WorkPlace::kToDevice:
      return {work.bytes / rates.host_to_device, OperatorBound::kToDevice};
    case WorkPlace::kDevice:
      break;
  }
  if (is_kernel) {
    return {kernel_seconds(work, rates), OperatorBound::kMemory};
  }
  const double flops = work.flops - work.masked_flops;
  const bool in_16bit = is_16bit(work.dtype);
  const bool is_product = flops / flops_rate(work, in_16bit, rates) >
                          work.bytes / rates.device_memory;
  return {
      operator_seconds(work, flops, in_16bit, rates),
      is_product ? OperatorBound::kProducts : OperatorBound::kMemory};
}

const char* bound_text(OperatorBound bound) {
  switch (bound) {
    case OperatorBound::kProducts:
      return "products";
    case OperatorBound::kMemory:
      return "memory";
    case OperatorBound::kHostMemory:
      return "host memory";
    case OperatorBound::kToHost:
      return "copies to host";
    case OperatorBound::kToDevice:
      return "copies to device";
    case OperatorBound::kLinks:
      return "links";
  }
  return "";
}

/// Rows of one table.
class OperatorTable {
 public:
  explicit OperatorTable(StepPrediction& prediction)
      : prediction_(prediction) {}

  void add(const OperatorWork& work, bool is_kernel) {
    const auto [seconds, bound] = time_of(work, is_kernel, prediction_.rates);
    add(
        {.name = work.name,
         .in_backward = work.in_backward,
         .calls = work.calls,
         .flops = work.flops - work.masked_flops,
         .bytes = work.bytes,
         .seconds = seconds,
         .bound = bound});
    prediction_.model_flops += work.flops - work.repeated_flops;
    (is_16bit(work.dtype) ? flops_16bit_ : flops_32bit_) += work.flops;
  }

  /// A name has a row for each bound: copies may go either way, and the head's
  /// product may be bound by another rate than the layers'.
  void add(const OperatorTime& time) {
    sum_of(prediction_, time.bound) += time.seconds;
    OperatorTime& row = rows_[{time.name, time.in_backward, time.bound}];
    const OperatorTime before = row;
    row = time;
    row.calls += before.calls;
    row.flops += before.flops;
    row.bytes += before.bytes;
    row.seconds += before.seconds;
  }

  void finish() {
    for (auto& [key, row] : rows_) {
      prediction_.operators.push_back(row);
    }
    std::stable_sort(
        prediction_.operators.begin(),
        prediction_.operators.end(),
        [](const OperatorTime& a, const OperatorTime& b) {
          return a.seconds > b.seconds;
        });
    prediction_.peak_flops = peak_flops(
        prediction_.device,
        flops_16bit_ > flops_32bit_ ? at::kBFloat16 : at::kFloat);
  }

 private:
  StepPrediction& prediction_;
  std::map<std::tuple<std::string, bool, OperatorBound>, OperatorTime> rows_;
  double flops_16bit_ = 0;
  double flops_32bit_ = 0;
};

std::string operator_row(const OperatorTime& row) {
  // Namespaces of kernels and operators say nothing here.
  std::string name = row.name;
  for (const char* prefix : {"aten::", "tessera::"}) {
    if (name.starts_with(prefix)) {
      name.erase(0, std::string(prefix).size());
    }
  }
  constexpr size_t kWidth = 34;
  if (name.size() > kWidth) {
    name = name.substr(0, kWidth - 2) + "..";
  }
  return formatted(
      "{:<34} {:<4} {:>6} {:>8.0f} {:>7.2f} {:>8.2f} {}\n",
      name,
      row.in_backward ? "bwd" : "",
      row.calls,
      row.flops / 1e9,
      row.bytes / 1e9,
      row.seconds * 1e3,
      bound_text(row.bound));
}

} // namespace

double StepPrediction::seconds() const {
  return std::max({device_s, links_s, to_host_s, to_device_s, host_s});
}

double StepPrediction::seconds_in_turn() const {
  return device_s + links_s + to_host_s + to_device_s + host_s;
}

std::optional<double> StepPrediction::mfu() const {
  return peak_flops && seconds() > 0
             ? std::optional(model_flops / seconds() / *peak_flops)
             : std::nullopt;
}

double flops_rate(
    const OperatorWork& work,
    bool in_16bit,
    const DeviceRates& rates) {
  if (is_rounded(work, rates) && rates.flops_rounded > 0) {
    return rates.flops_rounded;
  }
  if (!in_16bit) {
    return rates.flops_32bit;
  }
  // Of all kinds, forward and backward.
  return work.name.find("scaled_dot_product_") != work.name.npos
             ? rates.attention_16bit
             : rates.flops_16bit;
}

double operator_seconds(
    const OperatorWork& work,
    double flops,
    bool in_16bit,
    const DeviceRates& rates) {
  if (rates.operators) {
    auto measured = rates.operators->seconds(work, is_rounded(work, rates));
    if (!measured && is_rounded(work, rates) && rates.flops_rounded == 0) {
      measured = rates.operators->seconds(work); // see assumed_rate()
    }
    if (measured) {
      return *measured;
    }
  }
  return std::max(
      flops / flops_rate(work, in_16bit, rates),
      work.bytes / rates.device_memory);
}

double kernel_seconds(const OperatorWork& work, const DeviceRates& rates) {
  return work.bytes /
         (rates.operators ? rates.operators->kernels() : rates.device_memory);
}

double sent_bytes(const CollectiveWork& work) {
  const double others = static_cast<double>(work.ranks - 1) / work.ranks;
  if (work.kind == "all_reduce") {
    return 2 * work.bytes * others;
  }
  if (work.kind == "all_gather" || work.kind == "reduce_scatter" ||
      work.kind == "all_to_all") {
    return work.bytes * others;
  }
  return work.bytes; // broadcast, send
}

StepPrediction predict_step(
    const StepMemoryPlan& plan,
    const std::string& device,
    const DeviceRates& rates) {
  StepPrediction prediction{.device = device, .rates = rates};
  OperatorTable table(prediction);
  for (const OperatorWork& work : plan.operators) {
    table.add(work, /*is_kernel=*/false);
  }
  for (const OperatorWork& work : plan.kernels) {
    table.add(work, /*is_kernel=*/true);
  }
  for (const CollectiveWork& work : plan.collectives) {
    if (work.ranks > 1) {
      const double bytes = sent_bytes(work);
      table.add(OperatorTime{
          .name = work.kind + ", " + work.communicator,
          .calls = work.calls,
          .bytes = bytes,
          .seconds = bytes / rates.in_node,
          .bound = OperatorBound::kLinks});
    }
  }
  table.finish();
  return prediction;
}

namespace {

/// In TFLOP/s.
std::string rate_text(double flops) {
  return formatted("{:.{}f}", flops / 1e12, flops < 1e13 ? 2 : 0);
}

} // namespace

std::string prediction_table(const StepPrediction& prediction) {
  const DeviceRates& rates = prediction.rates;
  std::string text = formatted(
      "predicted for {}: products of 16 bits at {} TFLOP/s, of 32 bits at "
      "{}{}; attention at {}; memory at {:.2f} TB/s\n",
      prediction.device,
      rate_text(rates.flops_16bit),
      rate_text(rates.flops_32bit),
      rates.rounds_products && rates.flops_rounded > 0
          ? formatted(
                ", with rounded factors at {}", rate_text(rates.flops_rounded))
          : "",
      rate_text(rates.attention_16bit),
      rates.device_memory / 1e12);
  text += formatted(
      "{:<34} {:<4} {:>6} {:>8} {:>7} {:>8} {}\n",
      "operator",
      "",
      "calls",
      "GFLOP",
      "GB",
      "ms",
      "bound by");
  // Rows of less than a thousandth, together.
  OperatorTime rest{.name = "all others"};
  for (const OperatorTime& row : prediction.operators) {
    if (row.seconds >= prediction.seconds_in_turn() / 1000) {
      text += operator_row(row);
    } else {
      rest.calls += row.calls;
      rest.flops += row.flops;
      rest.bytes += row.bytes;
      rest.seconds += row.seconds;
    }
  }
  if (rest.calls > 0) {
    text += operator_row(rest);
  }
  text += formatted("device {:.1f} ms", prediction.device_s * 1e3);
  for (const auto& [name, seconds] :
       {std::pair("links", prediction.links_s),
        std::pair("copies to host", prediction.to_host_s),
        std::pair("to device", prediction.to_device_s),
        std::pair("host updates", prediction.host_s)}) {
    if (seconds > 0) {
      text += formatted(", {} {:.1f} ms", name, seconds * 1e3);
    }
  }
  text += formatted(
      "\nstep: {:.1f} ms if these overlap, {:.1f} ms if not; {:.1f} TFLOP of the "
      "model",
      prediction.seconds() * 1e3,
      prediction.seconds_in_turn() * 1e3,
      prediction.model_flops / 1e12);
  if (const auto mfu = prediction.mfu()) {
    text += formatted(
        ", {:.1f} % of {} TFLOP/s",
        100 * *mfu,
        rate_text(*prediction.peak_flops));
  }
  return text + "\n";
}

nlohmann::ordered_json prediction_json(const StepPrediction& prediction) {
  nlohmann::ordered_json json{
      {"device", prediction.device},
      {"step_s", prediction.seconds()},
      {"step_in_turn_s", prediction.seconds_in_turn()},
      {"device_s", prediction.device_s},
      {"links_s", prediction.links_s},
      {"to_host_s", prediction.to_host_s},
      {"to_device_s", prediction.to_device_s},
      {"host_s", prediction.host_s},
      {"model_flops", prediction.model_flops},
      {"mfu", nullptr},
      {"rates",
       {{"flops_16bit", prediction.rates.flops_16bit},
        {"flops_32bit", prediction.rates.flops_32bit},
        {"flops_rounded", prediction.rates.flops_rounded},
        {"attention_16bit", prediction.rates.attention_16bit},
        {"device_memory", prediction.rates.device_memory},
        {"device_to_host", prediction.rates.device_to_host},
        {"host_to_device", prediction.rates.host_to_device},
        {"host_update", prediction.rates.host_update},
        {"in_node", prediction.rates.in_node}}},
      {"operators", nlohmann::ordered_json::array()}};
  if (const auto mfu = prediction.mfu()) {
    json["mfu"] = *mfu;
  }
  for (const OperatorTime& row : prediction.operators) {
    json["operators"].push_back(
        {{"name", row.name},
         {"backward", row.in_backward},
         {"calls", row.calls},
         {"flops", row.flops},
         {"bytes", row.bytes},
         {"seconds", row.seconds},
         {"bound", bound_text(row.bound)}});
  }
  return json;
}

} // namespace tessera::planner
