// Metrics and probes over HTTP, on a port of their own.
#ifndef ATTND_SERVER_SERVICES_HTTP_SERVICE_H_
#define ATTND_SERVER_SERVICES_HTTP_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/metrics/metrics.h"

namespace attnd::server {

// What a server says of itself to health checks.
enum class Readiness {
  kWarming,   // /readyz 503: not yet
  kReady,     // /readyz 200
  kDraining,  // /readyz 404: goes away; balancers stop sending, but let calls finish
  kFaulty,    // /readyz 503: the device is lost
};

// GET /metrics  Prometheus' text format
// GET /livez    200 while the process serves HTTP at all
// GET /readyz   see Readiness
// Everything else: 404. Two threads, one request a connection: a probe or scraper that stalls is
// cut off after a few seconds and takes nothing from the calls.
class HttpService {
 public:
  // `port` 0 picks one. `metrics` outlives the service; `readiness` may be called from any thread
  // until then. UNAVAILABLE if the address cannot be had.
  static absl::StatusOr<std::unique_ptr<HttpService>> Start(const std::string& host, int port,
                                                            Metrics* metrics,
                                                            std::function<Readiness()> readiness);
  ~HttpService();

  int port() const;

 private:
  class Impl;
  explicit HttpService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_HTTP_SERVICE_H_
