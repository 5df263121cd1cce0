// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_report.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

namespace tessera::tools {

namespace {

using nlohmann::ordered_json;

__attribute__((format(printf, 1, 2))) std::string printed(
    const char* format,
    ...) {
  std::array<char, 256> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  return text.data();
}

double giga(double bytes_per_second) {
  return bytes_per_second * 1e-9;
}

ordered_json json_of(const NumaNodeBandwidth& node) {
  ordered_json rows = ordered_json::array();
  for (const MemoryBandwidth& row : node.by_threads) {
    rows.push_back(
        {{"threads", row.threads},
         {"read", row.read},
         {"write", row.write},
         {"triad", row.triad},
         {"update", row.update}});
  }
  return {
      {"node", node.node},
      {"cores", node.cores},
      {"memory_bytes", node.memory_bytes},
      {"bandwidth", rows}};
}

ordered_json json_of(const CpuOperatorRates& rates) {
  ordered_json json{
      {"threads", rates.threads},
      {"products_32bit", rates.products_32bit},
      {"products_16bit", rates.products_16bit},
      {"attention_16bit", rates.attention_16bit},
      {"elementwise", rates.elementwise}};
  if (rates.products_rounded) {
    json["products_rounded"] = *rates.products_rounded;
  }
  return json;
}

ordered_json json_of(const planner::MeasuredSteps& steps) {
  ordered_json operators = ordered_json::array();
  for (const planner::MeasuredOperator& each : steps.operators) {
    operators.push_back(
        {{"name", each.name},
         {"backward", each.in_backward},
         {"dtype", c10::toString(each.dtype)},
         {"rounded", each.is_rounded},
         {"work", each.work},
         {"seconds", each.seconds}});
  }
  return {
      {"kernels", steps.kernels},
      {"others", steps.others},
      {"operators", operators}};
}

ordered_json json_of(double parameters, const StepPrediction& step) {
  return {
      {"parameters", parameters},
      {"update_s", step.update},
      {"gradients_to_host_s", step.gradients_to_host},
      {"weights_to_device_s", step.weights_to_device},
      {"state_from_disk_s", step.state_from_disk},
      {"state_to_disk_s", step.state_to_disk},
      {"serial_s", step.serial()},
      {"overlapped_s", step.overlapped()},
      {"offload_ratio", step.ratio},
      {"split_s", step.split},
      {"overlapped_with_disk_s", step.overlapped_with_disk()}};
}

std::string text_of(const BenchFindings& findings, double parameters) {
  const StepPrediction step =
      predict_step(parameters, findings.bytes, bandwidths_of(findings));
  std::string line =
      printed("%8.2f B  %9.1f", parameters * 1e-9, 1000 * step.update);
  if (!findings.devices.empty()) {
    line += printed(
        "  %9.1f  %9.1f  %9.1f  %10.1f  %9.1f  %5.2f",
        1000 * step.gradients_to_host,
        1000 * step.weights_to_device,
        1000 * step.serial(),
        1000 * step.overlapped(),
        1000 * step.split,
        step.ratio);
  }
  if (findings.disk) {
    line += printed("  %12.1f", 1000 * step.overlapped_with_disk());
  }
  return line + "\n";
}

} // namespace

Bandwidths bandwidths_of(const BenchFindings& findings) {
  Bandwidths bandwidths;
  for (const NumaNodeBandwidth& node : findings.nodes) {
    double best = 0;
    for (const MemoryBandwidth& row : node.by_threads) {
      best = std::max(best, row.update);
    }
    bandwidths.host_update += best;
  }
  for (const DeviceBandwidth& device : findings.devices) {
    auto& up = bandwidths.host_to_device;
    auto& down = bandwidths.device_to_host;
    up = std::min(up.value_or(device.host_to_device), device.host_to_device);
    down =
        std::min(down.value_or(device.device_to_host), device.device_to_host);
  }
  if (findings.disk) {
    bandwidths.disk_read = findings.disk->read;
    bandwidths.disk_write = findings.disk->write;
  }
  return bandwidths;
}

ordered_json to_json(const BenchFindings& findings) {
  ordered_json json{
      {"numa_nodes", ordered_json::array()},
      {"disk", nullptr},
      {"devices", ordered_json::array()},
      {"cpu_operators", json_of(findings.cpu_operators)},
      {"bytes_per_parameter",
       {{"update", BytesPerParameter::kUpdate},
        {"gradient", findings.bytes.gradient},
        {"weight", findings.bytes.weight},
        {"state", BytesPerParameter::kState}}},
      {"predictions", ordered_json::array()},
      {"seconds", findings.seconds}};
  if (findings.training) {
    json["training"] = json_of(*findings.training);
  }
  for (const NumaNodeBandwidth& node : findings.nodes) {
    json["numa_nodes"].push_back(json_of(node));
  }
  if (findings.disk) {
    json["disk"] = {
        {"folder", findings.disk_folder},
        {"direct", findings.disk->direct},
        {"note", findings.disk->note},
        {"file_bytes", findings.disk->file_bytes},
        {"write", findings.disk->write},
        {"read", findings.disk->read}};
  }
  for (const DeviceBandwidth& device : findings.devices) {
    json["devices"].push_back(
        {{"index", device.index},
         {"host_to_device", device.host_to_device},
         {"device_to_host", device.device_to_host}});
  }
  const Bandwidths bandwidths = bandwidths_of(findings);
  for (const double parameters : findings.parameter_counts) {
    json["predictions"].push_back(json_of(
        parameters, predict_step(parameters, findings.bytes, bandwidths)));
  }
  return json;
}

std::string to_text(const BenchFindings& findings) {
  std::string text = "host memory, GB/s";
  for (const NumaNodeBandwidth& node : findings.nodes) {
    text += printed(
        "\nNUMA node %d, %d cores, %.1f GiB\n"
        "  threads     read    write    triad   update\n",
        node.node,
        node.cores,
        static_cast<double>(node.memory_bytes) / (1 << 30));
    for (const MemoryBandwidth& row : node.by_threads) {
      text += printed(
          "  %7d  %7.1f  %7.1f  %7.1f  %7.1f\n",
          row.threads,
          giga(row.read),
          giga(row.write),
          giga(row.triad),
          giga(row.update));
    }
  }
  const CpuOperatorRates& cpu = findings.cpu_operators;
  text += printed(
      "\noperators on the CPU, threads: %d\n"
      "  products of float32 %.1f%s, of bfloat16 %.1f, fused attention of "
      "bfloat16 %.1f GFLOP/s\n"
      "  other operators of float32 %.1f GB/s\n",
      cpu.threads,
      giga(cpu.products_32bit),
      cpu.products_rounded
          ? printed(
                " (with cpu_matmul=bfloat16 %.1f)", giga(*cpu.products_rounded))
                .c_str()
          : "",
      giga(cpu.products_16bit),
      giga(cpu.attention_16bit),
      giga(cpu.elementwise));
  if (findings.training) {
    text += printed(
        "  operators of training steps: %zu measured, those without products "
        "%.1f GB/s; kernels and all else %.1f GB/s\n",
        findings.training->operators.size(),
        giga(findings.training->others),
        giga(findings.training->kernels));
  }
  if (findings.disk) {
    text += printed(
        "\ndisk of '%.100s', GB/s\n  write %.2f, read %.2f, %s\n",
        findings.disk_folder.c_str(),
        giga(findings.disk->write),
        giga(findings.disk->read),
        findings.disk->direct ? "O_DIRECT" : findings.disk->note.c_str());
  }
  text += findings.devices.empty() ? "\nno CUDA device\n"
                                   : "\nhost and device, GB/s\n";
  for (const DeviceBandwidth& device : findings.devices) {
    text += printed(
        "  device %d: host to device %.1f, device to host %.1f\n",
        device.index,
        giga(device.host_to_device),
        giga(device.device_to_host));
  }
  text += printed(
      "\npredicted time of an Adam step on the host, ms (%.0f bytes per parameter "
      "updated%s)\nparameters     update",
      BytesPerParameter::kUpdate,
      findings.devices.empty() ? ""
                               : printed(
                                     ", %.0f to the host, %.0f back",
                                     findings.bytes.gradient,
                                     findings.bytes.weight)
                                     .c_str());
  text += findings.devices.empty()
              ? ""
              : "  gradients    weights     serial  overlapped      "
                "split  ratio";
  text += findings.disk ? "  state on disk\n" : "\n";
  for (const double parameters : findings.parameter_counts) {
    text += text_of(findings, parameters);
  }
  return text;
}

} // namespace tessera::tools
