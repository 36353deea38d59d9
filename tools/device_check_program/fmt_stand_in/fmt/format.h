#pragma once
// For machines without {fmt}, in the kernels-only build: what the device layer uses of it. Format specifications are
// left out of account.
#include <sstream>
#include <string>
#include <string_view>

namespace fmt {

template <class... Arguments>
std::string format(std::string_view text, const Arguments&... arguments) {
  std::string result;
  const auto up_to_the_next = [&] {
    const size_t begin = text.find('{');
    result += text.substr(0, begin);
    const size_t end = begin == std::string_view::npos ? begin : text.find('}', begin);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  };
  const auto put = [&](const auto& argument) {
    up_to_the_next();
    std::ostringstream stream;
    stream << argument;
    result += stream.str();
  };
  (put(arguments), ...);
  result += text;
  return result;
}

}  // namespace fmt
