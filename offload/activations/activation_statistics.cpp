// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activations/activation_statistics.h"

#include "tessera/runtime/core/size_text.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace tessera {

namespace {

void add_row(std::ostringstream& out, size_t width, const SavedByProducer& r) {
  out << "\n  " << std::left << std::setw(static_cast<int>(width)) << r.producer
      << std::right << std::setw(8) << r.storages << std::setw(16)
      << runtime::size_text(r.bytes) << std::setw(16)
      << runtime::size_text(r.bytes_left);
}

} // namespace

std::string first_step_text(const ActivationStatistics& statistics) {
  return "activations in the first step: " +
         runtime::size_text(statistics.bytes_to_host) +
         " copied to the host, " +
         runtime::size_text(statistics.bytes_to_device) + " copied back (" +
         runtime::size_text(statistics.bytes_prefetched) +
         " ahead of their use); at most " +
         runtime::size_text(statistics.peak_device_bytes) +
         " on the device and " +
         runtime::size_text(statistics.peak_host_bytes) +
         " on the host, where " +
         runtime::size_text(statistics.host_slab_bytes) +
         " is reserved for activations";
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
  out << "saved for backward, by producer: storages, bytes, bytes moved off the device";
  for (const SavedByProducer& row : rows) {
    add_row(out, width, row);
  }
  add_row(out, width, total);
  return out.str();
}

} // namespace tessera
