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

} // namespace

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
