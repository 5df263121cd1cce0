// SPDX-License-Identifier: Apache-2.0
#include "bench/prediction.h"

#include "tessera/offload/updates/update_split.h"

#include <algorithm>

namespace tessera::tools {

namespace {

double seconds(double bytes, const std::optional<double>& bytes_per_second) {
  return bytes_per_second ? bytes / *bytes_per_second : 0;
}

} // namespace

double StepPrediction::serial() const {
  return update + gradients_to_host + weights_to_device;
}

double StepPrediction::overlapped() const {
  return std::max({update, gradients_to_host, weights_to_device});
}

double StepPrediction::overlapped_with_disk() const {
  return std::max(overlapped(), state_from_disk + state_to_disk);
}

StepPrediction predict_step(
    double parameters,
    const BytesPerParameter& bytes,
    const Bandwidths& bandwidths) {
  StepPrediction step;
  step.update =
      seconds(parameters * BytesPerParameter::kUpdate, bandwidths.host_update);
  step.gradients_to_host =
      seconds(parameters * bytes.gradient, bandwidths.device_to_host);
  step.weights_to_device =
      seconds(parameters * bytes.weight, bandwidths.host_to_device);
  step.state_from_disk =
      seconds(parameters * BytesPerParameter::kState, bandwidths.disk_read);
  step.state_to_disk =
      seconds(parameters * BytesPerParameter::kState, bandwidths.disk_write);
  if (bandwidths.device_to_host && bandwidths.host_to_device) {
    const offload::UpdateRates rates{
        .cpu_element = BytesPerParameter::kUpdate / bandwidths.host_update,
        .device_element = 0, // negligible next to the transfers
        .byte_to_device = 1 / *bandwidths.host_to_device,
        .byte_to_host = 1 / *bandwidths.device_to_host};
    const offload::UpdateBytes moved{
        .gradient = bytes.gradient,
        .weight = bytes.weight,
        .state = BytesPerParameter::kState};
    step.ratio = offload::best_ratio(rates, moved);
    step.split = parameters * update_seconds(step.ratio, rates, moved);
  }
  return step;
}

} // namespace tessera::tools
