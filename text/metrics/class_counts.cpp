// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/metrics/class_counts.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>

namespace tessera::text {

namespace {

double f1_of(double right, double predicted, double wanted) {
  const double both = predicted + wanted;
  return both == 0 ? 0 : 2 * right / both;
}

} // namespace

void ClassCounts::add(
    const std::vector<int64_t>& wanted,
    const std::vector<int64_t>& predicted) {
  const auto counts_of = [&](int64_t one) -> Counts& {
    TESSERA_CHECK(
        one >= 0 && one < static_cast<int64_t>(per_class_.size()),
        "class {} is outside 0 .. {}",
        one,
        per_class_.size() - 1);
    return per_class_[static_cast<size_t>(one)];
  };
  size_t both = 0;
  for (const int64_t one : wanted) {
    counts_of(one).wanted += 1;
  }
  for (const int64_t one : predicted) {
    Counts& counts = counts_of(one);
    counts.predicted += 1;
    if (std::find(wanted.begin(), wanted.end(), one) != wanted.end()) {
      counts.right += 1;
      ++both;
    }
  }
  examples_ += 1;
  right_ += both == wanted.size() && both == predicted.size() ? 1 : 0;
}

std::vector<double> ClassCounts::values() const {
  std::vector<double> values{examples_, right_};
  for (const Counts& counts : per_class_) {
    values.insert(
        values.end(), {counts.right, counts.wanted, counts.predicted});
  }
  return values;
}

void ClassCounts::set_values(const std::vector<double>& values) {
  TESSERA_CHECK(
      values.size() == 2 + 3 * per_class_.size(),
      "{} counts for {} classes; expected {}",
      values.size(),
      per_class_.size(),
      2 + 3 * per_class_.size());
  examples_ = values[0];
  right_ = values[1];
  for (size_t i = 0; i < per_class_.size(); ++i) {
    per_class_[i] = {values[2 + 3 * i], values[3 + 3 * i], values[4 + 3 * i]};
  }
}

double ClassCounts::accuracy() const {
  return right_ / examples_;
}

double ClassCounts::f1(size_t of_class) const {
  const Counts& counts = per_class_.at(of_class);
  return f1_of(counts.right, counts.predicted, counts.wanted);
}

double ClassCounts::f1_macro(bool all_classes) const {
  double sum = 0;
  double classes = 0;
  for (size_t i = 0; i < per_class_.size(); ++i) {
    if (all_classes || per_class_[i].wanted + per_class_[i].predicted > 0) {
      sum += f1(i);
      classes += 1;
    }
  }
  return sum / classes;
}

double ClassCounts::f1_micro() const {
  Counts all;
  for (const Counts& counts : per_class_) {
    all.right += counts.right;
    all.predicted += counts.predicted;
    all.wanted += counts.wanted;
  }
  return f1_of(all.right, all.predicted, all.wanted);
}

double ClassCounts::matthews() const {
  double right = 0;
  double products = 0;
  double wanted = 0;
  double predicted = 0;
  for (const Counts& counts : per_class_) {
    right += counts.right;
    products += counts.wanted * counts.predicted;
    wanted += counts.wanted * counts.wanted;
    predicted += counts.predicted * counts.predicted;
  }
  const double all = examples_ * examples_;
  const double variances = (all - wanted) * (all - predicted);
  return variances > 0 ? (right * examples_ - products) / std::sqrt(variances)
                       : 0;
}

} // namespace tessera::text
