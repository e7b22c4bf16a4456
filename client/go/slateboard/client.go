// Package slateboard is a small client for Slateboard over the generated stubs in slateboard/v1.
//
// It shows what every client has to get right: a write is retried under its own request id where its outcome is
// unknown, and decided anew where somebody else was faster; errors are read from the status details; a watch resumes
// by revision over reconnects. For everything else the generated clients are at hand: Client.Entries, Client.Boards,
// Client.Sessions, Client.Provenance and Client.Admin.
package slateboard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	v1 "slateboard.dev/client/go/slateboard/v1"
)

// DefaultAddress is where a server listens unless told otherwise.
const DefaultAddress = "127.0.0.1:7400"

// Client is a connection to a server. It is safe for use by many goroutines.
type Client struct {
	Entries    v1.EntryServiceClient
	Boards     v1.BoardServiceClient
	Sessions   v1.SessionServiceClient
	Provenance v1.ProvenanceServiceClient
	Admin      v1.AdminServiceClient

	conn  *grpc.ClientConn
	retry Retry
}

type options struct {
	address string
	token   string
	tls     *tls.Config
	retry   Retry
	dial    []grpc.DialOption
}

// Option changes how Connect connects.
type Option func(*options)

// WithAddress names the server, instead of SLATE_SERVER. Any gRPC target: `host:port`, `dns:///name:port`.
func WithAddress(address string) Option { return func(o *options) { o.address = address } }

// WithToken gives the credential, instead of SLATE_TOKEN.
func WithToken(token string) Option { return func(o *options) { o.token = token } }

// WithTLS sets the TLS configuration, e.g. a private CA or a client certificate. Without it a loopback address is
// spoken to in plain text and any other one over TLS with the system's roots.
func WithTLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// WithRetry replaces DefaultRetry.
func WithRetry(retry Retry) Option { return func(o *options) { o.retry = retry } }

// WithDialOptions adds options of gRPC's own.
func WithDialOptions(dial ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, dial...) }
}

// Connect makes a client. Address and token come from SLATE_SERVER and SLATE_TOKEN unless an option gives them. The
// connection is made in the background; the first call shows whether the server can be reached.
func Connect(opts ...Option) (*Client, error) {
	o := options{address: os.Getenv("SLATE_SERVER"), token: os.Getenv("SLATE_TOKEN"), retry: DefaultRetry}
	for _, opt := range opts {
		opt(&o)
	}
	if o.address == "" {
		o.address = DefaultAddress
	}
	if o.token == "" {
		return nil, errors.New("slateboard: no token: set SLATE_TOKEN or pass WithToken")
	}

	transport, plain := insecure.NewCredentials(), o.tls == nil && isLoopback(o.address)
	if !plain {
		transport = credentials.NewTLS(o.tls)
	}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(bearer{token: o.token, plain: plain}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		// A dead connection is found within half a minute, also by a watch that only listens. The server takes a
		// ping every 10 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		// gRPC's own waits between connections would grow to two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	}, o.dial...)
	conn, err := grpc.NewClient(o.address, dial...)
	if err != nil {
		return nil, fmt.Errorf("slateboard: %w", err)
	}
	return &Client{
		Entries:    v1.NewEntryServiceClient(conn),
		Boards:     v1.NewBoardServiceClient(conn),
		Sessions:   v1.NewSessionServiceClient(conn),
		Provenance: v1.NewProvenanceServiceClient(conn),
		Admin:      v1.NewAdminServiceClient(conn),
		conn:       conn,
		retry:      o.retry,
	}, nil
}

// Close ends the connection; calls in flight fail.
func (c *Client) Close() error { return c.conn.Close() }

// Board names a board; it asks nothing of the server.
func (c *Client) Board(name string) *Board { return &Board{client: c, name: name} }

// bearer sends the token with every call, over plain text only where that was decided for a loopback address.
type bearer struct {
	token string
	plain bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.plain }

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address[strings.LastIndex(address, "/")+1:])
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
