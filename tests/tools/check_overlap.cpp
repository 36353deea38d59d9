// check_overlap TRACE: how much of the time in which a worker's keys, values and their gradients travel to the other
// workers of a gang does that worker compute? Fails when it is less than half.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: check_overlap TRACE\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  const nlohmann::json trace = nlohmann::json::parse(file);
  using Stretch = std::pair<double, double>;
  std::map<int64_t, std::vector<Stretch>> computing;        // by process
  std::map<int64_t, std::pair<int64_t, double>> under_way;  // by id: process, begin
  std::vector<std::pair<int64_t, Stretch>> travels;         // process, when
  for (const nlohmann::json& event : trace) {
    const std::string category = event.value("cat", "");
    const std::string phase = event.at("ph");
    if (category == "activity" && event.at("name") == "compute") {
      const double begin = event.at("ts");
      computing[event.at("pid")].emplace_back(begin, begin + event.at("dur").get<double>());
    }
    if (category != "exchange") continue;
    const int64_t id = event.at("id");
    if (phase == "b") under_way[id] = {event.at("pid"), event.at("ts")};
    if (phase == "e") travels.push_back({event.at("pid"), {under_way.at(id).second, event.at("ts")}});
  }
  double all = 0;
  double hidden = 0;
  for (const auto& [process, travel] : travels) {
    all += travel.second - travel.first;
    for (const auto& [begin, end] : computing[process]) {
      hidden += std::max(0.0, std::min(end, travel.second) - std::max(begin, travel.first));
    }
  }
  std::printf("%zu messages on their way for %.3f s together, %.1f %% of it beside computing\n", travels.size(),
              all / 1e6, all > 0 ? 100 * hidden / all : 0.0);
  return all > 0 && hidden >= 0.5 * all ? 0 : 1;
}
