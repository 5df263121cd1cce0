// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activation_statistics.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace tessera {

namespace {

void add_row(std::ostringstream& out, size_t width, const SavedByProducer& r) {
  const auto mebibytes = [](int64_t bytes) {
    return static_cast<double>(bytes) / (1 << 20);
  };
  out << "\n  " << std::left << std::setw(static_cast<int>(width)) << r.producer
      << std::right << std::setw(8) << r.storages << std::setw(12)
      << mebibytes(r.bytes) << " MiB" << std::setw(12)
      << mebibytes(r.bytes_left) << " MiB";
}

std::string mebibytes(int64_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2)
      << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return out.str();
}

} // namespace

std::string first_step_text(const ActivationStatistics& statistics) {
  return "activations in the first step: " +
         mebibytes(statistics.bytes_to_host) + " went to the host, " +
         mebibytes(statistics.bytes_to_device) + " came back (" +
         mebibytes(statistics.bytes_prefetched) +
         " ahead of their use); at most " +
         mebibytes(statistics.peak_device_bytes) + " were on the device and " +
         mebibytes(statistics.peak_host_bytes) + " on the host, where " +
         mebibytes(statistics.host_slab_bytes) + " are kept for them";
}

std::string saved_activations_table(const std::vector<SavedByProducer>& rows) {
  SavedByProducer total{"total"};
  size_t width = 20;
  for (const SavedByProducer& row : rows) {
    total.storages += row.storages;
    total.bytes += row.bytes;
    total.bytes_left += row.bytes_left;
    width = std::max(width, row.producer.size());
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(2)
      << "saved for backward, by producer: storages, bytes, left the device";
  for (const SavedByProducer& row : rows) {
    add_row(out, width, row);
  }
  add_row(out, width, total);
  return out.str();
}

} // namespace tessera
