// check_trace <trace.json> <servers> <workers> [<metrics.jsonl>]
//
// Checks what a trace promises (include/hat/metrics/trace.hpp): valid JSON, roles named, the activities of each worker
// without overlap and covering its time within 1 % (with metrics.jsonl: also as long as its wall clock and as its
// account says), asynchronous spans and arrows with both ends, ends of arrows inside spans, arrows that point forwards.
// Prints what it found. Exit codes: 0 good, 1 not.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

constexpr double kMicroseconds = 1e6;
constexpr double kRounding_us = 0.002;  // times have three decimals

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

struct Span {
  double begin;
  double end;
  std::string name;
};
using Thread = std::pair<int64_t, int64_t>;  // process, thread

struct Trace {
  std::map<int64_t, std::string> processes;
  std::map<Thread, std::vector<Span>> spans;
  std::map<std::string, int64_t> arrows;  // by name
};

void check_pairs(const json& events, const std::string& first, const std::string& second, Trace& trace,
                 std::vector<std::pair<Thread, double>>* places) {
  std::map<int64_t, json> open;
  for (const json& event : events) {
    if (event.at("ph") == first) {
      require(open.emplace(event.at("id"), event).second, "an id begins twice");
    }
  }
  size_t ended = 0;
  for (const json& event : events) {
    if (event.at("ph") != second) continue;
    const auto begin = open.find(event.at("id"));
    require(begin != open.end(), "an end without a beginning: " + event.dump());
    require(begin->second.at("name") == event.at("name"), "ends of different names: " + event.dump());
    require(event.at("ts").get<double>() >= begin->second.at("ts").get<double>() - kRounding_us,
            "points backwards: " + begin->second.dump() + " to " + event.dump());
    if (places != nullptr) {
      ++trace.arrows[event.at("name")];
      for (const json* end : {&event, static_cast<const json*>(&begin->second)}) {
        places->push_back({{end->at("pid"), end->at("tid")}, end->at("ts")});
      }
    }
    ++ended;
  }
  require(ended == open.size(), fmt::format("{} of {} '{}' have an end", ended, open.size(), first));
}

bool inside(const std::vector<Span>& spans, double time) {
  return std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
    return time >= span.begin - kRounding_us && time <= span.end + kRounding_us;
  });
}

Trace read(const json& events) {
  Trace trace;
  for (const json& event : events) {
    const std::string phase = event.at("ph");
    if (phase == "M" && event.at("name") == "process_name") {
      trace.processes[event.at("pid")] = event.at("args").at("name");
    }
    if (phase != "X") continue;
    const double begin = event.at("ts");
    const double length = event.at("dur");
    require(length >= 0, "a negative length: " + event.dump());
    trace.spans[{event.at("pid"), event.at("tid")}].push_back({begin, begin + length, event.at("name")});
  }
  check_pairs(events, "b", "e", trace, nullptr);
  std::vector<std::pair<Thread, double>> places;
  check_pairs(events, "s", "f", trace, &places);
  for (const auto& [thread, time] : places) {
    require(inside(trace.spans[thread], time),
            fmt::format("an arrow of process {} thread {} ends outside of any span", thread.first, thread.second));
  }
  return trace;
}

/// Seconds by name of the activities of one worker.
std::map<std::string, double> check_activities(std::vector<Span> spans, const std::string& worker) {
  require(!spans.empty(), worker + " has no activity");
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::map<std::string, double> seconds;
  double covered = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (i > 0) {
      require(spans[i].begin >= spans[i - 1].end - kRounding_us,
              fmt::format("{}: {} and {} overlap at {} us", worker, spans[i - 1].name, spans[i].name, spans[i].begin));
    }
    covered += spans[i].end - spans[i].begin;
    seconds[spans[i].name] += (spans[i].end - spans[i].begin) / kMicroseconds;
  }
  const double wall = spans.back().end - spans.front().begin;
  require(covered >= 0.99 * wall, fmt::format("{}: {} of {} us are covered", worker, covered, wall));
  fmt::print("{}: {} spans, {:.3f} s, covered {:.3f} %\n", worker, spans.size(), wall / kMicroseconds,
             100 * covered / wall);
  return seconds;
}

void check_account(const std::map<std::string, double>& traced, const json& line, const std::string& worker) {
  const double wall = line.at("wall_seconds");
  double all = 0;
  for (const auto& [name, seconds] : traced) all += seconds;
  require(std::abs(all - wall) <= 0.01 * wall, fmt::format("{}: {} s traced, the clock says {}", worker, all, wall));
  for (const auto& [name, seconds] : line.at("seconds").items()) {
    const auto found = traced.find(name);
    const double here = found == traced.end() ? 0.0 : found->second;
    require(std::abs(here - seconds.get<double>()) <= 0.02 * wall,
            fmt::format("{}: {} s of {} traced, the account says {}", worker, here, name, seconds.get<double>()));
  }
}

void check(int argc, char** argv) {
  require(argc == 4 || argc == 5, "usage: check_trace <trace.json> <servers> <workers> [<metrics.jsonl>]");
  std::ifstream file(argv[1]);
  const json events = json::parse(file);
  require(events.is_array() && !events.empty(), "is no array of events");
  const Trace trace = read(events);
  std::set<std::string> names;
  for (const auto& [process, name] : trace.processes) names.insert(name);
  std::set<std::string> expected;
  for (int s = 0; s < std::stoi(argv[2]); ++s) expected.insert(fmt::format("server {}", s));
  for (int w = 0; w < std::stoi(argv[3]); ++w) expected.insert(fmt::format("worker {}", w));
  require(names == expected, fmt::format("roles: {}", fmt::join(names, ", ")));
  std::map<std::string, json> accounts;
  if (argc == 5) {
    std::ifstream lines(argv[4]);
    for (std::string line; std::getline(lines, line);) {
      const json object = json::parse(line);
      if (object.at("kind") == "worker") accounts[fmt::format("worker {}", object.at("worker").get<int>())] = object;
    }
    require(static_cast<int>(accounts.size()) == std::stoi(argv[3]), "metrics.jsonl lacks workers");
  }
  for (const auto& [process, name] : trace.processes) {
    if (!name.starts_with("worker")) {
      require(trace.spans.contains({process, 0}), name + " has no updates");
      continue;
    }
    const auto seconds = check_activities(trace.spans.at({process, 0}), name);
    if (argc == 5) check_account(seconds, accounts.at(name), name);
    require(trace.spans.contains({process, 1}), name + " has no passes");
  }
  for (const char* name : {"push", "pull"}) {
    const auto found = trace.arrows.find(name);
    require(found != trace.arrows.end(), fmt::format("no arrows named {}", name));
    fmt::print("{} arrows named {}\n", found->second, name);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    check(argc, argv);
  } catch (const std::exception& error) {
    fmt::print("check_trace: {}\n", error.what());
    return 1;
  }
  return 0;
}
