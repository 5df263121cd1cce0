// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/init_method.h"

#include "tessera/runtime/core/error.h"

#include <cmath>

namespace tessera {

namespace {

struct Fans {
  double in = 0;
  double out = 0;
};

Fans fans_of(at::IntArrayRef sizes) {
  TESSERA_CHECK(
      sizes.size() >= 2,
      "a Xavier or Kaiming init method needs a parameter of at least two dimensions, [out, in, ...]; this one has sizes {}. Use normal_init() or uniform_init().",
      sizes);
  double field = 1; // number of elements of a convolution kernel
  for (const int64_t size : sizes.slice(2)) {
    field *= static_cast<double>(size);
  }
  return {
      static_cast<double>(sizes[1]) * field,
      static_cast<double>(sizes[0]) * field};
}

/// Normal with mean 0 and the standard deviation that `std_of` returns for the
/// fans.
template <typename StdOf>
InitMethod normal_of(StdOf std_of) {
  return [std_of](const at::Tensor& slice, const InitPosition& position) {
    const double std = std_of(fans_of(position.sizes));
    fill_normal(slice, position.random, position.first_element, 0, std);
  };
}

template <typename StdOf>
InitMethod uniform_of(StdOf std_of) {
  return [std_of](const at::Tensor& slice, const InitPosition& position) {
    const double bound = std::sqrt(3.0) * std_of(fans_of(position.sizes));
    fill_uniform(slice, position.random, position.first_element, -bound, bound);
  };
}

auto xavier_std(double gain) {
  return [gain](const Fans& fans) {
    return gain * std::sqrt(2 / (fans.in + fans.out));
  };
}

auto kaiming_std(double negative_slope, Fan fan) {
  return [=](const Fans& fans) {
    return std::sqrt(
        2 / ((1 + negative_slope * negative_slope) *
             (fan == Fan::kIn ? fans.in : fans.out)));
  };
}

} // namespace

InitMethod constant_init(double value) {
  return [value](const at::Tensor& slice, const InitPosition& /*place*/) {
    slice.fill_(value);
  };
}

InitMethod zeros_init() {
  return constant_init(0);
}

InitMethod ones_init() {
  return constant_init(1);
}

InitMethod normal_init(double mean, double std) {
  return [=](const at::Tensor& slice, const InitPosition& position) {
    fill_normal(slice, position.random, position.first_element, mean, std);
  };
}

InitMethod uniform_init(double low, double high) {
  return [=](const at::Tensor& slice, const InitPosition& position) {
    fill_uniform(slice, position.random, position.first_element, low, high);
  };
}

InitMethod xavier_normal_init(double gain) {
  return normal_of(xavier_std(gain));
}

InitMethod xavier_uniform_init(double gain) {
  return uniform_of(xavier_std(gain));
}

InitMethod kaiming_normal_init(double negative_slope, Fan fan) {
  return normal_of(kaiming_std(negative_slope, fan));
}

InitMethod kaiming_uniform_init(double negative_slope, Fan fan) {
  return uniform_of(kaiming_std(negative_slope, fan));
}

} // namespace tessera
